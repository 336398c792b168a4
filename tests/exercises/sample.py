"""Two small exercises to test with: one on ranks, one without a world."""

import random

import torch
import torch.distributed as dist

from course_lib.exercises import Case, Exercise, Mistake, only_calls


def mean(x: torch.Tensor) -> torch.Tensor:
    """Return the mean of `x` over all ranks, on every rank; `x` keeps its values."""
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def mean_stub(x: torch.Tensor) -> torch.Tensor:
    """Return the mean of `x` over all ranks, on every rank; `x` keeps its values."""
    raise NotImplementedError


def sum_for_mean(x: torch.Tensor) -> torch.Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total


def halved(x: torch.Tensor) -> torch.Tensor:
    """Right on two ranks, and only there."""
    total = x.clone()
    dist.all_reduce(total)
    return total / 2


def waits_on_odd_ranks(x: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() % 2:
        dist.all_reduce(x)
    return x


def draw_mean(rng: random.Random, number: int) -> Case:
    world_size, numel, seed = (2, 3, 4, 1)[number % 4], rng.randint(3, 6), rng.getrandbits(32)

    def args(rank: int) -> tuple[torch.Tensor]:
        return (torch.randint(-9, 10, (numel,), generator=torch.Generator().manual_seed(seed + rank)).float(),)

    return Case(world_size=world_size, args=args, about=f"{world_size} ranks, {numel} elements")


MEAN = Exercise(
    name="sample.mean",
    title="Mean",
    task="Return the mean of `x` over all ranks.",
    stub=mean_stub,
    reference=mean,
    draw=draw_mean,
    mistakes=[
        Mistake(id="sum-for-mean", solution=sum_for_mean, told="That is the sum.", action="Divide."),
        Mistake(id="halved", solution=halved, told="You divide by 2.", action="Divide by the world size."),
        Mistake(id="odd", solution=waits_on_odd_ranks, told="Half of the ranks call.", action="Call on all."),
    ],
    hints=["What is a mean?", "A sum, divided.", "`dist.all_reduce`.", "total = x.clone()\n..."],
    explanation="A sum over `world_size` ranks, divided by their number.",
    rules=[only_calls("all_reduce")],
)


def doubled(numbers: list[int]) -> list[int]:
    """Return every number twice as large."""
    return [2 * number for number in numbers]


def doubled_stub(numbers: list[int]) -> list[int]:
    """Return every number twice as large."""
    raise NotImplementedError


def repeated(numbers: list[int]) -> list[int]:
    return 2 * numbers


def draw_doubled(rng: random.Random, number: int) -> Case:
    numbers = [rng.randint(1, 99) for _ in range(3 + number)]
    return Case(world_size=0, args=lambda rank: (list(numbers),), about=f"{len(numbers)} numbers")


DOUBLED = Exercise(
    name="sample.doubled",
    title="Doubled",
    task="Return every number twice as large.",
    stub=doubled_stub,
    reference=doubled,
    draw=draw_doubled,
    mistakes=[Mistake(id="repeated", solution=repeated, told="That is the list twice.", action="Use each number.")],
    hints=["What is `2 * [1]`?"],
    explanation="Each number by itself.",
)
