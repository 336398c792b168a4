"""Repair: a collective that not every rank calls."""

import random
from typing import Any

import torch
import torch.distributed as dist

from ...exercises import Case, Exercise, Solution, whole_numbers


def draw(rng: random.Random, number: int) -> Case:
    world_size = 2 + number % 3
    numels = [rng.randint(1, 3)] + [rng.randint(4, 7) for _ in range(world_size - 1)]
    if number > 0:  # the first case has losses on every rank
        numels[0] = 0
    if number == 5:  # fewer losses than ranks
        numels = [2] + [0] * (world_size - 1)
    rng.shuffle(numels)
    seed = rng.getrandbits(32)

    def args(rank: int) -> tuple[torch.Tensor]:
        losses = whole_numbers(numels[rank], seed=seed, rank=rank)
        losses[-1:] = 0  # a loss like any other, not the mark of padding
        return (losses,)

    return Case(
        world_size=world_size,
        args=args,
        what=f"losses on each: {', '.join(map(str, numels))}",
    )


def one_number(solution: Solution, losses: torch.Tensor) -> Any:
    """Return the mean; a tensor of shape [1] is one number, too, and so are one in fp64 and a Python number."""
    mean = solution(losses)
    if isinstance(mean, int | float):
        mean = torch.tensor(mean)
    return mean.reshape(()).float() if isinstance(mean, torch.Tensor) and mean.numel() == 1 else mean


exercise = Exercise("ranks.repair_average", title="Repair: not every rank calls", draw=draw, trial=one_number, task="""
    Each rank has some `losses`. The number of losses differs from rank to rank, and a rank may have none. Every rank
    returns the mean of all losses. In the program below, some ranks skip calls in which the other ranks wait: there are
    two such places. Repair them.""", hints="""
    Write down for each rank which collectives it calls, in order. Are the lists the same?

    Every rank of the group must call a collective, even a rank that has no data for it. A condition may decide what a
    rank contributes, never whether it calls.

    `torch.tensor([]).sum()` is 0, so you do not need the early return. Both `dist.all_reduce` calls belong outside
    every `if`.

    ```python
    total = losses.sum()
    count = torch.tensor(float(losses.numel()))
    dist.all_reduce(...)
    dist.all_reduce(...)
    return total / count
    ```
    """, explanation="""
    Both places have the same fault: a collective is inside a condition that differs from rank to rank. On a cluster,
    such a program hangs until a time limit ends it, often minutes later and on a different line. The rule is simple:
    decide by rank what to contribute, never whether to call. And sum before you divide: if ranks have different numbers
    of losses, the mean of their means is not the mean.""")


@exercise
def average(losses: torch.Tensor) -> torch.Tensor:
    """Return, on every rank, the mean of the losses of all ranks.

    Some ranks have fewer losses than others, or none.
    """
    total = losses.sum()  # of nothing: 0
    count = torch.tensor(float(losses.numel()))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


EARLY = "if losses.numel() == 0:\n    return torch.tensor(0.0)"

exercise.start_edit({"total = losses.sum()  # of nothing: 0": f"{EARLY}  # nothing to add\ntotal = losses.sum()",
    "dist.all_reduce(count)": "if dist.get_rank() == 0:\n    dist.all_reduce(count)"})

exercise.edit("still-returns-early", {"total = losses": f"{EARLY}\ntotal = losses"}, """
    A rank without losses still skips the collectives, and the other ranks wait for it. A rank without data adds 0, but
    it has to make the call.
    Next: leave out the early return and every condition. An empty tensor has the sum 0 and the count 0.""")

exercise.edit("returns-zero-at-the-end", {"return total / count": f"{EARLY}\nreturn total / count"}, """
    A rank without losses still returns 0, though it has the sums of all ranks. Next: leave out the early return.""")

exercise.edit("still-only-rank-zero", {
    "dist.all_reduce(count)": "if dist.get_rank() == 0:\n    dist.all_reduce(count)"}, """
    Only rank 0 calls the second all-reduce, and waits for the other ranks. Next: take this call out of the `if`.""")

exercise.edit("own-count", {"dist.all_reduce(count)\n": ""}, """
    You divide the sum of all losses by this rank's own count, so the result differs from rank to rank.
    Next: sum the counts over ranks, too, before you divide.""")

exercise.edit("largest-count", {"dist.all_reduce(count)": "dist.all_reduce(count, dist.ReduceOp.MAX)"}, """
    You divide the sum of all losses by the largest of the ranks' counts. The other ranks have losses, too.
    Next: sum the counts over ranks.""")

exercise.edit("count-on-rank-zero", {"dist.all_reduce(count)": "dist.reduce(count, dst=0)"}, """
    Only rank 0 has the sum of the counts, because `dist.reduce` brings its result to one rank. The other ranks divide
    by a different number. Next: use the collective that brings the sum to every rank.""")

exercise.edit("nothing-counts-as-one", {"losses.numel()": "max(losses.numel(), 1)"}, """
    You count a rank without losses as if it had one loss, of 0, and this pulls the mean towards 0.
    Next: leave an empty tensor empty: its sum is 0, and so is its count.""")

exercise.edit("by-world-size", {
    "dist.all_reduce(count)\nreturn total / count": "return total / dist.get_world_size()"}, """
    You divide by the number of ranks. The mean of the losses needs the number of losses.
    Next: sum the counts over ranks, too, and divide by the result.""")


@exercise.mistake
def mean_of_nothing(losses: torch.Tensor) -> torch.Tensor:
    """You average the means of the ranks. Ranks have different numbers of losses, so this is not the mean of all
    losses. One rank without losses even makes the whole result NaN.
    Next: sum the losses and the counts over ranks, and divide at the end."""
    mean = losses.mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


@exercise.mistake
def mean_of_means(losses: torch.Tensor) -> torch.Tensor:
    """You average the means of the ranks, as if all ranks had the same number of losses. A rank without losses counts
    as a loss of 0. Next: sum the losses and the counts over ranks, and divide at the end."""
    mean = losses.mean() if losses.numel() else torch.tensor(0.0)
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


@exercise.mistake
def mean_of_nonempty_means(losses: torch.Tensor) -> torch.Tensor:
    """You average the means of the ranks that have losses. A rank with two losses then counts as much as a rank with
    seven. Next: sum the losses and the counts over ranks, and divide at the end."""
    mean_and_one = torch.tensor([losses.mean(), 1.0] if losses.numel() else [0.0, 0.0])
    dist.all_reduce(mean_and_one)
    return mean_and_one[0] / mean_and_one[1]


@exercise.variant
def both_in_one_call(losses: torch.Tensor) -> torch.Tensor:
    total_and_count = torch.tensor([losses.sum(), losses.numel()])
    dist.all_reduce(total_and_count)
    return total_and_count[0] / total_and_count[1]


@exercise.variant
def gathers_first(losses: torch.Tensor) -> torch.Tensor:
    everyones: list[list[float]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, losses.tolist())
    return torch.tensor([loss for losses_of_rank in everyones for loss in losses_of_rank]).mean()


@exercise.variant
def sums_of_shape_one(losses: torch.Tensor) -> torch.Tensor:
    total_and_count = torch.stack([losses.sum(), torch.tensor(float(losses.numel()))])
    dist.all_reduce(total_and_count)
    total, count = total_and_count.split(1)
    return total / count
