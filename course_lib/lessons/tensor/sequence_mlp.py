"""An MLP and the norm before it under sequence parallel."""

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution, draw_world_size, holds_no_more, normal, sends_no_more
from ...meter import mark
from ...parallel import copy, reduce_scatter
from .data import my_part, output_and_gradients
from .gather_sequence import gather_sequence
from .mlp import make_layers


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed, width = draw_world_size(rng, number), rng.getrandbits(32), 4
    length = 8 * world_size  # a part is 128 bytes: the rule allows three copies of it, and none of the whole on 4 ranks
    what = f"{length} tokens of width {width}"
    return Case(world_size=world_size, args=lambda rank: (seed, width, length), what=what)


def scatter_sequence(x: Tensor) -> Tensor:
    """Return this rank's part of the sum of all ranks' `x`, as the lesson defines it."""
    return reduce_scatter(x, dim=0)


def one_step(solution: Solution, seed: int, width: int, length: int) -> Any:
    """Return this rank's part of the output, and the gradients."""
    up, down = make_layers(seed, width, length)
    norm = nn.LayerNorm(width)
    with torch.no_grad():
        norm.weight.copy_(normal(width, seed=seed + 5))
        norm.bias.copy_(normal(width, seed=seed + 6))
    x, slopes = (my_part(normal(length, width, seed=seed + 7 + number), 0) for number in range(2))
    leaves = {"x": x.requires_grad_(), "norm_weight": norm.weight, "norm_bias": norm.bias}
    leaves |= {"up_weight": up.weight, "up_bias": up.bias, "down_weight": down.weight, "down_bias": down.bias}
    output = solution(x, norm, up, down)
    mark("between forward and backward")
    return output_and_gradients(output, slopes, **leaves)


exercise = Exercise("tensor.sequence_mlp", title="What sequence parallel needs", draw=draw, trial=one_step,
    case_count=4, tolerance=1e-4, measured=True, rules=[
        holds_no_more("activations", "between forward and backward", slack=440),
        sends_no_more("gather and scatter in both passes, and sums for the norm and the bias of `down`", slack=0.1)],
    task="""
    One process computes `down(F.gelu(up(norm(x))))`. Now this rank has a part of the sequence, and normalizes only this
    part; the check measures the activations that wait for backward. Return this rank's part of the output.
    `gather_sequence` and `scatter_sequence` stand at the two ends of the parallel part. Every gradient equals that of
    one process, even those of the norm and of `down.bias`, which every rank has whole: each rank sees only some tokens,
    and these parameters work on all of them. No rank sends more bytes than this takes.
    """, hints="""
    The norm's weight is the same on every rank, and is used for different tokens on each. What has to happen to its
    gradient?

    The gradient is a sum over tokens, and each rank has the summands of its own tokens. So the ranks must sum. You have
    seen a function that does nothing in forward and sums the gradient in backward.

    `F.layer_norm(x, norm.normalized_shape, weight, bias)` takes a weight and a bias: pass `copy(norm.weight)`, and
    likewise the others. The bias of `down` is added to this rank's part, after the scatter.

    ```python
    normed = F.layer_norm(x, norm.normalized_shape, ..., ...)
    features = F.gelu(up(...))
    summand = F.linear(features, down.weight)
    return ... + ...
    ```
    """, explanation="""
    The norm's input, and the sum that the block continues with, exist once over all ranks, not N times: these were the
    copies that tensor parallel leaves. The gathered sequence is still whole on every rank. Megatron keeps only this
    rank's part of it, and gathers once more in backward. The price is a small sum for each parameter that is whole:
    [width] numbers. Frameworks mark these parameters and sum their gradients after backward; without the sum, the
    copies of the norm drift apart without an error. `up` and `down.weight` need no sum, because they see the whole
    sequence.
    """)


@exercise
def sequence_mlp(x: torch.Tensor, norm: nn.LayerNorm, up: nn.Linear, down: nn.Linear) -> torch.Tensor:
    """Return this rank's part, [length / N, width], of the output of the norm and the MLP.

    x: [length / N, width], this rank's part of the sequence.
    norm: whole, the same on every rank.
    up, down: this rank's part, as in `mlp`.
    """
    normed = F.layer_norm(x, norm.normalized_shape, copy(norm.weight), copy(norm.bias))
    features = F.gelu(up(gather_sequence(normed)))
    summand = F.linear(features, down.weight)
    return scatter_sequence(summand) + copy(down.bias)


NORMED = "F.layer_norm(x, norm.normalized_shape, copy(norm.weight), copy(norm.bias))"

exercise.edit("nothing-summed", {NORMED: "norm(x)", "copy(down.bias)": "down.bias"}, """
    The output is right. The gradients of the norm and of `down.bias` come only from this rank's tokens, so each rank
    updates its copies differently, without an error. Next: pass these three parameters through `copy`.
    """)

exercise.edit("norm-not-summed", {NORMED: "norm(x)"}, """
    The gradient of `down.bias` is summed over ranks. Those of the norm still come only from this rank's tokens.
    Next: pass the norm's weight and bias through `copy`, too.
    """)

exercise.edit("norm-weight-not-summed", {"copy(norm.weight)": "norm.weight"}, """
    The gradient of the norm's weight comes only from this rank's tokens. Next: pass it through `copy`, as you pass the
    norm's bias.
    """)

exercise.edit("norm-bias-not-summed", {"copy(norm.bias)": "norm.bias"}, """
    The gradient of the norm's bias comes only from this rank's tokens. Next: pass it through `copy`, as you pass the
    norm's weight.
    """)

exercise.edit("copy-on-x", {NORMED: "norm(copy(x))"}, """
    You pass `x` through `copy`, which sums its gradient over ranks. But each rank has tokens of its own in `x`, and the
    gradients of the norm still come only from these. Next: use `copy` for the norm's weight and bias, and not for `x`.
    """)

exercise.edit("bias-not-summed", {"copy(down.bias)": "down.bias"}, """
    The gradient of `down.bias` comes only from this rank's tokens. Under tensor parallel it was whole, because every
    rank had all tokens there. Next: pass `down.bias` through `copy`.
    """)

exercise.edit("bias-on-every-rank", {
    "F.linear(features, down.weight)": "F.linear(features, down.weight, copy(down.bias))",
    " + copy(down.bias)": ""}, """
    Every rank adds the bias before the sum, so the output contains it N times. Next: add it after the scatter.
    """)

exercise.edit("bias-inside", {"F.linear(features, down.weight)": "down(features)", " + copy(down.bias)": ""}, """
    `down(features)` adds the whole bias on every rank, and the scatter's sum contains it N times. Next: multiply by
    `down.weight` only, and add the bias after the scatter.
    """)

exercise.edit("plain-norm-after-the-gather", {NORMED: "gather_sequence(x)",
    "gather_sequence(normed)": "norm(normed)"}, """
    You gather before the norm, so every rank normalizes all tokens. And its gradients come only from this rank's
    features. Next: normalize this rank's part, and gather afterwards.
    """)

exercise.edit("norm-after-the-gather", {NORMED: "gather_sequence(x)",
    "gather_sequence(normed)": "F.layer_norm(normed, norm.normalized_shape, copy(norm.weight), copy(norm.bias))"}, """
    The numbers are right. You gather before the norm, so every rank normalizes all tokens and keeps the norm's input of
    the whole sequence. These are the copies that sequence parallel removes.
    Next: normalize this rank's part, and gather afterwards.
    """)

exercise.edit("no-gather", {"gather_sequence(normed)": "normed"}, """
    You do not gather before the first matrix, so each rank computes its features for its own tokens only, and the
    scatter cuts these tokens once more. Next: gather the sequence before `up`.
    """)

exercise.edit("up-summed-too", {"up(gather_sequence(normed))":
    "F.linear(gather_sequence(normed), copy(up.weight), copy(up.bias))"}, """
    You sum the gradients of `up` over ranks. Each rank has a different part of this layer, and its gradient is
    complete.
    Next: use `copy` only for parameters that every rank has whole.
    """)


@exercise.variant
def norm_by_hand(x: Tensor, norm: nn.LayerNorm, up: nn.Linear, down: nn.Linear) -> Tensor:
    params = copy(torch.cat([norm.weight, norm.bias, down.bias]))
    weight, bias, last = params.chunk(3)
    whole = gather_sequence(F.layer_norm(x, norm.normalized_shape) * weight + bias)
    return last + scatter_sequence(F.gelu(up(whole)) @ down.weight.t())


exercise.variant_edit("names-for-all", {"normed = F.layer_norm(": "weight, bias = map(copy, (norm.weight, norm.bias))\n"
    "normed = F.layer_norm(", "copy(norm.weight), copy(norm.bias))": "weight, bias, norm.eps)"})
