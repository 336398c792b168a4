"""Repair: a collective that not every rank calls."""

from __future__ import annotations

import random

import torch
import torch.distributed as dist

from ..declare import Case, Exercise, Mistake
from . import stubs
from .data import whole_numbers


def average(losses: torch.Tensor) -> torch.Tensor:
    """Return, on every rank, the mean of the losses of all ranks."""
    total = losses.sum()  # of nothing: 0
    count = torch.tensor(float(losses.numel()))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


def still_returns_early(losses: torch.Tensor) -> torch.Tensor:
    if losses.numel() == 0:
        return torch.tensor(0.0)
    total = losses.sum()
    count = torch.tensor(float(losses.numel()))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


def still_only_rank_zero(losses: torch.Tensor) -> torch.Tensor:
    total = losses.sum()
    count = torch.tensor(float(losses.numel()))
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        dist.all_reduce(count)
    return total / count


def own_count(losses: torch.Tensor) -> torch.Tensor:
    total = losses.sum()
    dist.all_reduce(total)
    return total / losses.numel()


def count_of_rank_zero(losses: torch.Tensor) -> torch.Tensor:
    total = losses.sum()
    count = torch.tensor(float(losses.numel()))
    dist.all_reduce(total)
    dist.broadcast(count, src=0)
    return total / count


def count_on_rank_zero(losses: torch.Tensor) -> torch.Tensor:
    total = losses.sum()
    count = torch.tensor(float(losses.numel()))
    dist.all_reduce(total)
    dist.reduce(count, dst=0)
    return total / count


def nothing_counts_as_one(losses: torch.Tensor) -> torch.Tensor:
    total = losses.sum()
    count = torch.tensor(float(max(losses.numel(), 1)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


def by_world_size(losses: torch.Tensor) -> torch.Tensor:
    total = losses.sum()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def mean_of_nothing(losses: torch.Tensor) -> torch.Tensor:
    mean = losses.mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def mean_of_means(losses: torch.Tensor) -> torch.Tensor:
    mean = losses.mean() if losses.numel() else torch.tensor(0.0)
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def mean_of_nonempty_means(losses: torch.Tensor) -> torch.Tensor:
    mean = losses.mean() if losses.numel() else torch.tensor(0.0)
    ranks_with_losses = torch.tensor(float(losses.numel() > 0))
    dist.all_reduce(mean)
    dist.all_reduce(ranks_with_losses)
    return mean / ranks_with_losses


def sum_for_mean(losses: torch.Tensor) -> torch.Tensor:
    total = losses.sum()
    dist.all_reduce(total)
    return total


def result_on_rank_zero(losses: torch.Tensor) -> torch.Tensor:
    total = losses.sum()
    count = torch.tensor(float(losses.numel()))
    dist.reduce(total, dst=0)
    dist.reduce(count, dst=0)
    return total / count if dist.get_rank() == 0 else torch.tensor(0.0)


def both_in_one_call(losses: torch.Tensor) -> torch.Tensor:
    total_and_count = torch.tensor([losses.sum(), losses.numel()])
    dist.all_reduce(total_and_count)
    return total_and_count[0] / total_and_count[1]


def gathers_first(losses: torch.Tensor) -> torch.Tensor:
    everyones: list[list[float]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, losses.tolist())
    return torch.tensor([loss for losses_of_rank in everyones for loss in losses_of_rank]).mean()


def draw(rng: random.Random, number: int) -> Case:
    world_size = 2 + number % 3
    numels = [rng.randint(1, 3)] + [rng.randint(4, 7) for _ in range(world_size - 1)]
    if number > 0:  # the first case has losses on every rank
        numels[0] = 0
    rng.shuffle(numels)
    seed = rng.getrandbits(32)
    return Case(
        world_size=world_size,
        args=lambda rank: (whole_numbers(numels[rank], seed=seed, rank=rank),),
        about=f"{world_size} ranks with {', '.join(map(str, numels))} losses",
    )


REPAIR_AVERAGE = Exercise(
    name="ranks.repair_average",
    title="Repair: not every rank calls",
    task="Each rank has some `losses`, one rank more than another, and at times a rank has none at all. Every rank "
    "returns the mean of all of them. In the program below some ranks never make calls that the others wait in: there "
    "are two such places. Repair them.",
    stub=stubs.average,
    reference=average,
    draw=draw,
    variants={"both-in-one-call": both_in_one_call, "gathers-first": gathers_first},
    mistakes=[
        Mistake(
            id="still-returns-early",
            solution=still_returns_early,
            told="A rank without losses still keeps away from the collectives, and the others wait for it in vain. A "
            "rank that has nothing to add adds nothing: it has to take part all the same.",
            action="Leave out the early return and every condition. An empty tensor has the sum 0 and the count 0.",
        ),
        Mistake(
            id="still-only-rank-zero",
            solution=still_only_rank_zero,
            told="Rank 0 alone calls the second all-reduce, and waits for the others in vain.",
            action="Take that call out of the `if`.",
        ),
        Mistake(
            id="own-count",
            solution=own_count,
            told="You divide the sum of all losses by this rank's own count, so every rank gets another result.",
            action="Sum the counts over ranks as well, before you divide.",
        ),
        Mistake(
            id="count-of-rank-zero",
            solution=count_of_rank_zero,
            told="You divide the sum of all losses by rank 0's count, on every rank.",
            action="Sum the counts, with `dist.all_reduce(count)`, before you divide.",
        ),
        Mistake(
            id="count-on-rank-zero",
            solution=count_on_rank_zero,
            told="The sum of the counts reaches rank 0 alone, and the others divide by something else: `dist.reduce` "
            "brings its result to one rank.",
            action="Use `dist.all_reduce(count)`.",
        ),
        Mistake(
            id="nothing-counts-as-one",
            solution=nothing_counts_as_one,
            told="A rank without losses is counted as if it had one, of 0, and pulls the mean towards 0.",
            action="Leave an empty tensor empty: its sum is 0, and so is its count.",
        ),
        Mistake(
            id="by-world-size",
            solution=by_world_size,
            told="You divide by the number of ranks. The mean of the losses needs the number of losses.",
            action="Sum the counts over ranks as well, and divide by that.",
        ),
        Mistake(
            id="mean-of-nothing",
            solution=mean_of_nothing,
            told="You average the means of the ranks. They do not count alike, and the mean of no losses is NaN, which "
            "spoils the whole.",
            action="Sum the losses and the counts over ranks, and divide at the end.",
        ),
        Mistake(
            id="mean-of-means",
            solution=mean_of_means,
            told="You average the means of the ranks, as if they all had the same number of losses; a rank that has "
            "none counts as a loss of 0.",
            action="Sum the losses and the counts over ranks, and divide at the end.",
        ),
        Mistake(
            id="mean-of-nonempty-means",
            solution=mean_of_nonempty_means,
            told="You average the means of the ranks that have losses. A rank with two losses then counts as much as "
            "one with seven.",
            action="Sum the losses and the counts over ranks, and divide at the end.",
        ),
        Mistake(
            id="sum-for-mean",
            solution=sum_for_mean,
            told="You return the sum of all losses.",
            action="Divide it by the number of losses of all ranks.",
        ),
        Mistake(
            id="result-on-rank-zero",
            solution=result_on_rank_zero,
            told="Only rank 0 gets the mean: `dist.reduce` brings the sum to one rank.",
            action="Use `dist.all_reduce`, which brings it to all.",
        ),
    ],
    hints=[
        "Write down for each rank which collectives it calls, in order. Are the lists the same?",
        "A collective is a meeting: everyone in the group must come, also who has nothing to bring. Conditions may "
        "decide what a rank brings, never whether it comes.",
        "`torch.tensor([]).sum()` is 0, so the early return is not needed; both `dist.all_reduce` calls belong outside "
        "every `if`.",
        "```python\ntotal = losses.sum()\ncount = torch.tensor(float(losses.numel()))\n"
        "dist.all_reduce(...)\ndist.all_reduce(...)\nreturn total / count\n```",
    ],
    explanation="Both faults are the same fault: a condition that differs from rank to rank stands around a "
    "collective. On a cluster such a program hangs until a watchdog ends it, often minutes later and on another line. "
    "The rule is simple: decide by rank what to contribute, never whether to call. (And sum before you divide: the "
    "mean of means is not the mean when ranks have different numbers of losses.)",
)
