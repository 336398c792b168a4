"""Self-attention, each rank with some of the heads."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution, at_most, draw_world_size, normal, only_calls
from ...parallel import copy
from .all_reduce import all_reduce
from .data import output_and_gradients

HEAD = 12
"""Elements of a head. Every number of ranks divides it, so that heads cut in the wrong place still have whole sizes."""


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed, length = draw_world_size(rng, number), rng.getrandbits(32), rng.randint(3, 4)
    heads, batch = (2 + number % 2) * world_size, 1 + number % 2
    what = f"{heads} heads, {length} tokens" + " in each of 2 sequences" * (batch > 1)
    return Case(world_size=world_size, args=lambda rank: (seed, batch, length, heads), what=what)


def one_step(solution: Solution, seed: int, batch: int, length: int, heads: int) -> Any:
    """Return the output, and the gradients of the input and of the two whole matrices."""
    width = heads * HEAD
    x, fused, out = normal(batch, length, width, seed=seed), normal(3 * width, width, seed=seed + 1) / 4, nn.Parameter(
        normal(width, width, seed=seed + 2) / width
    )
    leaves = {"x": x.requires_grad_(), "fused": fused.requires_grad_(), "out": out}
    return output_and_gradients(solution(x, fused, out, heads), normal(batch, length, width, seed=seed + 3), **leaves)


exercise = Exercise("tensor.attention", title="Attention by heads", draw=draw, trial=one_step, case_count=4,
    tolerance=1e-3, rules=[only_calls("all_reduce"), at_most("all_reduce", 2)], task="""
    Heads do not need each other, so each rank computes some of them: of `heads` heads, rank r computes the r-th of N
    equal groups. Many models keep query, key and value in one fused matrix. It is whole here, on every rank, and so is
    `out`: use only the rows and columns of this rank's heads. Return the output of the causal attention, on every rank,
    with `copy` and `all_reduce` at its two ends: two all-reduces, one in forward and one in backward.
    """, hints="""
    The rows of the fused matrix are: all of query, then all of key, then all of value. Where in it are the rows of rank
    0's heads?

    In three places. A cut of the fused matrix into N pieces gives one rank all of query and none of value. First
    separate the three, then cut each by ranks.

    `fused.chunk(3)`, then `.chunk(world_size)[rank]` of each. A rank has `heads // world_size` heads. `out` takes this
    rank's features as its input, so its columns are cut: dimension 1.

    ```python
    x = copy(x)
    query, key, value = (
        F.linear(x, part.chunk(...)[...]).unflatten(2, (..., -1)).transpose(1, 2) for part in fused.chunk(3)
    )
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    ...  # the heads side by side again, then this rank's columns of out
    ```
    """, explanation="""
    A head is a column-parallel slice of query, key and value, and `out` is row parallel: the same pair as in the MLP,
    with the same two all-reduces. Softmax works inside a head, so no rank needs scores of a different rank. The number
    of ranks has to divide the number of heads. A checkpoint with a fused matrix needs the cut in this exercise: an
    engine that cuts it into N blocks loads it without an error, and computes something else.
    """)


@exercise
def attention(x: torch.Tensor, fused: torch.Tensor, out: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the output of causal self-attention, [batch, length, width], on every rank.

    x: [batch, length, width].
    fused: [3 * width, width], the weights of query, key and value, one below the other.
    out: [width, width], the weight of the output layer.
    All are whole, and the same on every rank. This rank computes `heads / N` heads.
    Use two all-reduces, one in forward and one in backward, and no other call.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x = copy(x)
    query, key, value = (
        F.linear(x, part.chunk(world_size)[rank]).unflatten(2, (heads // world_size, -1)).transpose(1, 2)
        for part in fused.chunk(3)
    )
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    features = attended.transpose(1, 2).flatten(2)
    return all_reduce(F.linear(features, out.chunk(world_size, dim=1)[rank]))


exercise.edit("cuts-the-fused-matrix", {"part.chunk(world_size)[rank]": "part",
    "fused.chunk(3)": "fused.chunk(world_size)[rank].chunk(3)"}, """
    You cut the fused matrix into N blocks of rows. Of two ranks, the first then has all of query and half of key, and
    takes them for query, key and value. The shapes are right all the same.
    Next: separate query, key and value first, and cut each of the three by ranks.
    """)

exercise.edit("heads-not-divided", {"(heads // world_size, -1)": "(heads, -1)"}, """
    You split this rank's features into all `heads`. They are only the features of some heads, so your heads are N times
    too narrow. Next: count the heads that this rank has.
    """)

exercise.edit("heads-and-elements-swapped", {"(heads // world_size, -1)": "(-1, heads // world_size)"}, """
    The features of one head are neighbours: the first dimension is the head, the second its elements. You have them
    swapped. Next: unflatten to (heads of this rank, elements of a head).
    """)

exercise.edit("not-causal", {", is_causal=True": ""}, """
    Each token also reads the tokens after it. Next: tell the attention that it is causal.
    """)

exercise.edit("tokens-for-heads", {"attended.transpose(1, 2).flatten(2)":
    "attended.reshape(x.shape[0], x.shape[1], -1)"}, """
    You give the attended values the right shape without moving the heads next to each other. So tokens and heads mix.
    Next: swap tokens and heads back before you flatten the heads.
    """)

exercise.edit("attends-over-heads", {".unflatten(2, (heads // world_size, -1)).transpose(1, 2)":
    ".unflatten(2, (heads // world_size, -1))", "attended.transpose(1, 2).flatten(2)": "attended.flatten(2)"}, """
    Your query, key and value are [batch, length, heads, size]. The attention works over the last two dimensions, so the
    heads of one token attend to each other. Next: swap length and heads before the attention, and back after it.
    """)

exercise.edit("reshaped-into-heads", {".unflatten(2, (heads // world_size, -1)).transpose(1, 2)":
    ".reshape(x.shape[0], heads // world_size, x.shape[1], -1)"}, """
    You reshape query, key and value to [batch, heads, length, size] at once. Reshaping moves no number, so a head
    gets features of other heads, at the wrong tokens.
    Next: reshape to [batch, length, heads, size], and swap length and heads.
    """)

exercise.edit("out-cut-by-rows", {"out.chunk(world_size, dim=1)[rank]": "out.chunk(world_size)[rank].t()"}, """
    You use rows of `out`, which are output features. A rank's heads are input features of `out`: its columns. Next: cut
    `out` along its second dimension.
    """)

exercise.edit("one-head-per-rank", {"(heads // world_size, -1)": "(1, -1)"}, """
    You treat all of this rank's features as one head. Next: count the heads that this rank has.
    """)

exercise.edit("no-sum-in-backward", {"x = copy(x)\n": ""}, """
    The output is right. In backward, `x` gets only the gradient from this rank's heads.
    Next: send `x` through `copy` first.
    """)

exercise.edit("no-sum-in-forward", {"all_reduce(F.linear(features, out.chunk(world_size, dim=1)[rank]))":
    "F.linear(features, out.chunk(world_size, dim=1)[rank])"}, """
    Each rank returns what its own heads contribute to the output. Next: sum over ranks with `all_reduce`.
    """)

exercise.edit("copy-for-each", {"x = copy(x)\n": "", "F.linear(x,": "F.linear(copy(x),"}, """
    The numbers are right. You call `copy` for query, key and value, so backward makes three all-reduces of the same
    size.
    Next: call `copy` once. Autograd sums the three gradients on this rank first, and one all-reduce is enough.
    """)


@exercise.variant
def head_by_head(x: Tensor, fused: Tensor, out: Tensor, heads: int) -> Tensor:
    mine = heads // dist.get_world_size()
    size = x.shape[-1] // heads
    x, total = copy(x), torch.zeros_like(x)
    query, key, value = fused.chunk(3)
    for head in range(dist.get_rank() * mine, (dist.get_rank() + 1) * mine):
        rows = slice(head * size, (head + 1) * size)
        scores = (x @ query[rows].t()) @ (x @ key[rows].t()).transpose(1, 2) / size**0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
        total = total + scores.softmax(2) @ (x @ value[rows].t()) @ out[:, rows].t()
    return all_reduce(total)


exercise.variant_edit("all-at-once", {"part.chunk(world_size)[rank])": "part)",
    "for part in fused.chunk(3)": "for part in fused.unflatten(0, (3, world_size, -1))[:, rank]"})
