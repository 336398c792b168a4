"""Two small exercises to test with: one on ranks, one without a world."""

import copy
import random
from typing import Any

import torch
import torch.distributed as dist

from course_lib.exercises import Case, Exercise, only_calls


def changed(exercise: Exercise, **fields: Any) -> Exercise:
    """Return a copy of `exercise` with other values in `fields`."""
    other = copy.copy(exercise)
    vars(other).update(fields)
    return other


def draw_mean(rng: random.Random, number: int) -> Case:
    world_size, numel, seed = (2, 3, 4, 1)[number % 4], rng.randint(3, 6), rng.getrandbits(32)

    def args(rank: int) -> tuple[torch.Tensor]:
        return (torch.randint(-9, 10, (numel,), generator=torch.Generator().manual_seed(seed + rank)).float(),)

    return Case(world_size=world_size, args=args, what=f"{numel} elements")


MEAN = Exercise(
    "sample.mean",
    title="Mean",
    task="Return the mean of `x` over all ranks.",
    draw=draw_mean,
    rules=[only_calls("all_reduce")],
    hints="""
        What is a mean?

        A sum, divided.

        `dist.all_reduce`.

        total = x.clone()
        """,
    explanation="A sum over `world_size` ranks, divided by their number.",
)


@MEAN
def mean(x: torch.Tensor) -> torch.Tensor:
    """Return the mean of `x` over all ranks, on every rank; `x` keeps its values."""
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


@MEAN.mistake
def sum_for_mean(x: torch.Tensor) -> torch.Tensor:
    """That is the sum. Next: Divide."""
    total = x.clone()
    dist.all_reduce(total)
    return total


MEAN.edit("halved", {"dist.get_world_size()": "2"}, "You divide by 2. Next: Divide by the world size.")
"""Right on two ranks only."""


@MEAN.mistake
def odd(x: torch.Tensor) -> torch.Tensor:
    """Half of the ranks call. Next: Call on all."""
    if dist.get_rank() % 2:
        dist.all_reduce(x)
    return x


def gathered(x: torch.Tensor) -> list[torch.Tensor]:
    """Return `x` of all ranks."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def draw_doubled(rng: random.Random, number: int) -> Case:
    numbers = [rng.randint(1, 99) for _ in range(3 + number)]
    return Case(world_size=0, args=lambda rank: (list(numbers),), what=f"{len(numbers)} numbers")


DOUBLED = Exercise(
    "sample.doubled",
    title="Doubled",
    task="Return every number twice as large.",
    draw=draw_doubled,
    hints="What is `2 * [1]`?",
    explanation="Each number by itself.",
)


@DOUBLED
def doubled(numbers: list[int]) -> list[int]:
    """Return every number twice as large."""
    return [2 * number for number in numbers]


DOUBLED.edit(
    "repeated", {"[2 * number for number in numbers]": "2 * numbers"}, "That is the list twice. Next: Use each number."
)
