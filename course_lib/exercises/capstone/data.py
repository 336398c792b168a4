"""A small model, batches for it, and engines to train it with."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ... import zero
from ..data_parallel.data import ranks

Batches = list[tuple[Tensor, Tensor]]

ROWS = 12
"""In a batch: they divide by 1 to 4 ranks."""

STAGES = (zero.DataParallel, zero.Stage1, zero.Stage2, zero.Stage3)


class Scored(nn.Module):
    """A model that is called with x and y and gives the mean loss. It remembers how many rows it was given."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(5, 3)
        self.rows: list[int] = []

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.rows.append(len(x))
        return F.cross_entropy(self.body(x), y)


def draw_batches(seed: int, count: int) -> Batches:
    """The same on every rank; each is of other examples, some easy and some hard, so that no two losses are alike."""
    stream = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(ROWS, 5, generator=stream) * (1 + number),
            torch.randint(3, (ROWS,), generator=stream),
        )
        for number in range(count)
    ]


def draw_world(rng: random.Random, number: int) -> tuple[int, int, str]:
    """How many ranks, which stage, and both in words."""
    world_size = (2, 4, 3, 1)[number] if number < 4 else rng.randint(2, 4)
    stage = (0, 2, 3, 1)[number % 4]
    return world_size, stage, f"{ranks(world_size)}, stage {stage}"


def make_engine(seed: int, stage: int, optimizer_class: type[Optimizer], **options: Any) -> Any:
    """An engine of this stage, alike on all ranks."""
    return STAGES[stage](Scored(seed), optimizer_class, **options)


def part_of(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """This rank's rows."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, y = batch
    return x.chunk(world_size)[rank], y.chunk(world_size)[rank]
