"""What measuring costs: a training step on ranks whose memory is measured, beside the same where it is not."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import World

from .measure import Row

GOAL = 1.3
"""The most of an unmeasured step's time that a measured one may take."""


def step_seconds(steps: int = 12) -> float:
    """On a rank: the median time of a training step of a transformer with 4 layers of width 128.

    Its batch is the one that nanoGPT's README gives for this size of model, on a laptop: 12 sequences of 64 tokens.
    """
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=512, dropout=0.0, batch_first=True)
    model = DistributedDataParallel(nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(12, 64, 128)
    times = []
    for _ in range(steps):
        dist.barrier()
        start = time.perf_counter()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])  # the first two warm up: DDP makes its buckets anew after one


def seconds(rounds: int = 15, world_size: int = 4) -> tuple[float, float]:
    """The time of a step, measured and not: of runs in turns, the two one after the other whose ratio is the median.

    A machine that others use, too, is now fast and now slow, for minutes. It is rarely so between two runs.
    """
    pairs = []
    for _ in range(rounds):
        measured = World(world_size).run(step_seconds)[0]
        pairs.append((measured, World(world_size, measure=False).run(step_seconds)[0]))
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[rounds // 2]


def rows() -> Iterator[Row]:
    """The rows of this benchmark."""
    measured, unmeasured = seconds()
    yield Row(
        what="a step whose memory is measured, 4 ranks",
        ours=measured,
        peer=unmeasured,
        peer_name="measure=False",
        goal=f"≤ {GOAL} × measure=False",
        met=measured <= GOAL * unmeasured,
    )
