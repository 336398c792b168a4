"""Incident: ranks with different numbers of tokens prepare rows of different sizes for the experts."""

import math
import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...exercises import Case, Exercise, normal
from ..context.data import an_expert

Function = Callable[[Tensor], Tensor]


def draw(rng: random.Random, number: int) -> Case:
    """Draw full batches and then smaller ones: on one rank, with no token there, or on all ranks."""
    seed, width = rng.getrandbits(31), 3 if number == 0 else rng.randint(3, 4)
    full, lasts, factor = (
        (8, [8, 8, 8, 3], 2.0),
        (rng.randint(6, 9), [rng.randint(5, 6), 0], 1.0),
        (13, [rng.randint(1, 3), 8, 2], 0.5),  # 3 tokens for each expert, and in the last batch 2
    )[number % 3]

    def args(rank: int) -> tuple[Function, nn.Module, list[Tensor], float]:
        route, expert = normal(width, len(lasts), seed=seed), an_expert(rank, width).requires_grad_(False)
        batches = [normal(count, width, seed=seed + 10 * step + rank) for step, count in enumerate([full, lasts[rank]])]
        return lambda tokens: (tokens @ route).argmax(dim=1), expert, batches, factor

    what = f"{full} tokens on each rank, then {', '.join(map(str, lasts))}"
    return Case(world_size=len(lasts), args=args, what=what)


exercise = Exercise("incidents.uneven_tokens", title="Incident: the last tokens", draw=draw,
    answers={
        "rows": 2,
        "dropped": "ranks 0, 1 and 2 wait for rank 3, which makes no call",
    },
    inputs_matter=False, case_count=3, tolerance=1e-4, task="""
    The evaluation runs well, and hangs in its last batch. The report is
    [Tutel, issue 173](https://github.com/microsoft/Tutel/issues/173). Repair the program
    until its docstring is true for batches of any size.
    """, hints="""
    How many rows does rank 0 prepare for each expert in the last batch? How many does rank 3?

    Each rank computes the capacity from its own number of tokens. In an all-to-all of equal pieces, all pieces of all
    ranks have the same size, so the ranks have to agree on the number from which they compute it.

    `dist.all_reduce(most, dist.ReduceOp.MAX)` finds the largest number of tokens that a rank has. A rank without a
    token makes the same calls, with rows of zeros.

    ```python
    most = torch.tensor(len(tokens))
    dist.all_reduce(most, ...)
    capacity = math.ceil(factor * ... / world_size)
    ```
    """, explanation="""
    A capacity makes all pieces equal, so nothing has to be exchanged before the tokens travel. That is true as
    long as every rank has the same number of tokens. This holds in training, but not at the end of a file, with
    sequences of different lengths, or in generation. There each batch needs one small all-reduce, which Tutel added as
    an option after the report. gloo ends a process that gets more than it expects; NCCL waits for the rest.
    """)


@exercise
def evaluate(
    choose: Callable[[Tensor], Tensor], expert: Callable[[Tensor], Tensor], batches: list[Tensor], factor: float
) -> list[Tensor]:
    """Return what the experts make of each batch of tokens [n, width]; a token that is dropped becomes zeros.

    Rank k has expert k, and `choose(tokens)` returns the expert of each token. From each rank an expert takes the
    first tokens, at most `capacity`: `factor` times an expert's even share of the most tokens that a rank has.
    """
    world_size, results = dist.get_world_size(), []
    for number, tokens in enumerate(batches):
        most = torch.tensor(len(tokens))
        dist.all_reduce(most, dist.ReduceOp.MAX)
        capacity = math.ceil(factor * int(most) / world_size)
        choice = choose(tokens)
        print(f"batch {number}: {len(tokens)} tokens, for the experts {choice.tolist()}")
        places = [torch.nonzero(choice == rank)[:capacity, 0] for rank in range(world_size)]
        rows = tokens.new_zeros(world_size, capacity, tokens.shape[1])
        for rank, place in enumerate(places):
            rows[rank, : len(place)] = tokens[place]
        arrived, back = torch.empty_like(rows), torch.empty_like(rows)
        dist.all_to_all_single(arrived, rows)
        dist.all_to_all_single(back, expert(arrived))
        result = torch.zeros_like(tokens)
        for rank, place in enumerate(places):
            result[place] = back[rank, : len(place)]
        results.append(result)
    return results


AGREE = "most = torch.tensor(len(tokens))\ndist.all_reduce(most, dist.ReduceOp.MAX)\n"
EMPTY = "arrived, back = torch.empty_like(rows), torch.empty_like(rows)\n"

exercise.start_edit({AGREE: "", "int(most)": "len(tokens)"})

exercise.edit("a-barrier-first", {AGREE: "dist.barrier()\n", "int(most)": "len(tokens)"}, """
    The ranks still prepare rows of different sizes. A barrier does not change that, nor does a number that they
    exchange and do not use. Next: let them agree on the capacity.
    """)

exercise.edit("leaves-small-batches-out", {AGREE: "if len(tokens) < len(batches[0]):\n    continue\n",
    "int(most)": "len(tokens)"}, """
    A rank with a small batch leaves it out, so its tokens are lost. It makes no call, and a rank with a full batch
    waits for it in the all-to-all. Next: let every rank make every call.
    """)

exercise.edit("as-in-the-first-batch", {AGREE: "", "int(most)": "len(batches[0])"}, """
    You compute the capacity of every batch from a full one, such as the first. So the sizes agree. But if no rank has a
    full batch, the experts take more tokens than `capacity` allows. Next: ask all ranks, in each batch.
    """)

exercise.edit("smallest-batch", {"ReduceOp.MAX": "ReduceOp.MIN"}, """
    All ranks agree on the capacity of the smallest batch, so the ranks with more tokens lose most of theirs. Next: take
    the largest number of tokens.
    """)

exercise.edit("all-tokens", {"dist.ReduceOp.MAX": "dist.ReduceOp.SUM"}, """
    You compute the capacity from the tokens of all ranks together, so it is several times too large. It limits what an
    expert takes from one rank. Next: take the most tokens that a rank has.
    """)

exercise.edit("mean-batch", {"dist.ReduceOp.MAX)\n": "dist.ReduceOp.SUM)\nmost = most / world_size\n",
    "int(most)": "float(most)"}, """
    You compute the capacity from the mean number of tokens. The ranks agree on it, but those with more tokens than the
    mean lose some. Next: take the most tokens that a rank has.
    """)

exercise.edit("rows-for-every-token", {"math.ceil(factor * int(most) / world_size)": "int(most)"}, """
    Your rows have a place for every token of the largest batch, so nothing is dropped, and most of what you send is
    zeros. Next: keep the factor, and divide by the number of experts.
    """)

exercise.edit("without-the-factor", {"factor * int(most)": "int(most)"}, """
    The ranks agree on the most tokens, but your capacity is an expert's even share of them, without `factor`.
    Next: multiply the share by it.
    """)

exercise.edit("each-its-own-capacity", {AGREE: "", "int(most)": "len(tokens)",
    EMPTY: "capacities = torch.empty(world_size, dtype=torch.int64)\n"
    "dist.all_gather_single(capacities, torch.tensor([capacity]))\n"
    "arrived, back = rows.new_empty(int(capacities.sum()), rows.shape[2]), torch.empty_like(rows)\n",
    "dist.all_to_all_single(arrived, rows)\n": "rows, mine = rows.flatten(0, 1), [capacity] * world_size\n"
    "dist.all_to_all_single(arrived, rows, capacities.tolist(), mine)\n",
    "dist.all_to_all_single(back, expert(arrived))": "back = back.flatten(0, 1)\n"
    "dist.all_to_all_single(back, expert(arrived), mine, capacities.tolist())\n"
    "back = back.view(world_size, capacity, tokens.shape[1])"}, """
    The ranks no longer wait, but each computes a capacity of its own. A rank with few tokens still has a smaller
    capacity than the others, and drops tokens that there is room for. Next: use one capacity on all ranks.
    """)


@exercise.variant
def sends_no_padding(
    choose: Callable[[Tensor], Tensor], expert: Callable[[Tensor], Tensor], batches: list[Tensor], factor: float
) -> list[Tensor]:
    world_size, results = dist.get_world_size(), []
    for tokens in batches:
        counts: list[int] = [0] * world_size
        dist.all_gather_object(counts, len(tokens))
        capacity = math.ceil(factor * max(counts) / world_size)
        places = [torch.nonzero(choose(tokens) == rank)[:capacity, 0] for rank in range(world_size)]
        sent = torch.tensor([len(place) for place in places])
        received, order = torch.empty_like(sent), torch.cat(places)
        dist.all_to_all_single(received, sent)
        arrived, back = tokens.new_empty(int(received.sum()), tokens.shape[1]), torch.empty_like(tokens[order])
        dist.all_to_all_single(arrived, tokens[order], received.tolist(), sent.tolist())
        dist.all_to_all_single(back, expert(arrived), sent.tolist(), received.tolist())
        results.append(torch.zeros_like(tokens).index_copy(0, order, back))
    return results


exercise.variant_edit("gathers-the-counts", {AGREE: "counts = [torch.empty(1) for _ in range(world_size)]\n"
    "dist.all_gather(counts, torch.tensor([float(len(tokens))]))\nmost = max(counts)\n"})
