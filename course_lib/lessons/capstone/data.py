"""A small model, batches for it, and engines to train it with."""

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ... import zero

Batches = list[tuple[Tensor, Tensor]]

ROWS = 12
"""The number of rows in a batch; it divides by 1 to 4 ranks."""

STAGES = (zero.DataParallel, zero.Stage1, zero.Stage2, zero.Stage3)


class Scored(nn.Module):
    """A model that returns the mean loss of x and y, and records the number of rows of each call."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(5, 3)
        self.rows: list[int] = []

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.rows.append(len(x))
        return F.cross_entropy(self.body(x), y)


def draw_batches(seed: int, count: int) -> Batches:
    """Return `count` batches, the same on every rank. Later batches have larger inputs, so their losses differ."""
    stream = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(ROWS, 5, generator=stream) * (1 + number),
            torch.randint(3, (ROWS,), generator=stream),
        )
        for number in range(count)
    ]


def draw_world(rng: random.Random, number: int) -> tuple[int, int]:
    """Return the number of ranks, and the stage."""
    world_size = (2, 4, 3, 1)[number] if number < 4 else rng.randint(2, 4)
    return world_size, (0, 2, 3, 1)[number % 4]


def make_engine(seed: int, stage: int, optimizer_class: type[Optimizer], **options: Any) -> Any:
    """Return an engine of this stage, the same on all ranks."""
    return STAGES[stage](Scored(seed), optimizer_class, **options)
