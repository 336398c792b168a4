"""The models and gradients that the exercises of lesson 05 are tried on."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ranks.data import whole_numbers
from .bucket import Bucket

DTYPES = (torch.float32, torch.float64)

Shapes = Sequence[tuple[int, ...]]


def draw_shapes(rng: random.Random, world_size: int) -> Shapes:
    """Shapes of three parameters. Together they do not divide, unless there is one rank."""
    while True:
        shapes = [(rng.randint(2, 4), rng.randint(2, 5)), (rng.randint(1, 5),), (rng.randint(2, 4), 3)]
        if world_size == 1 or sum(torch.Size(shape).numel() for shape in shapes) % world_size:
            return shapes


def parameters(shapes: Shapes, dtype: torch.dtype, seed: int) -> list[nn.Parameter]:
    """A parameter of each shape, alike on every rank."""
    drawn = (whole_numbers(*shape, seed=seed, rank=number, dtype=dtype) for number, shape in enumerate(shapes))
    return [nn.Parameter(values / 100) for values in drawn]


def poisoned_bucket(params: list[nn.Parameter]) -> Bucket:
    """A bucket with NaN behind its last parameter: whoever computes with it has NaN, too."""
    bucket = Bucket(params)
    bucket.flat_param[sum(bucket.numels) :] = torch.nan
    return bucket


def grad_shard(bucket: Bucket) -> Tensor | None:
    """A copy of this rank's averaged gradients, without padding."""
    if bucket.param_shard.grad is None:
        return None
    begin = dist.get_rank() * bucket.param_shard.numel()
    return bucket.param_shard.grad[: max(0, sum(bucket.numels) - begin)].clone()
