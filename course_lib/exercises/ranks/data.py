"""The data that the exercises of lesson 01 are tried on."""

from __future__ import annotations

import random
import time
from typing import Any

import torch
import torch.distributed as dist

from ..declare import Case, Solution

DTYPES = (torch.float32, torch.int64, torch.float64)


def whole_numbers(*shape: int, seed: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers from -500 to 500, other ones on each rank: their sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed + rank)
    return torch.randint(-500, 501, shape, generator=generator).to(dtype)


def draw_world_size(rng: random.Random, number: int) -> int:
    """2, 3, 4 and 1 ranks, in the first four draws; then any of 2, 3 and 4."""
    return (2, 3, 4, 1)[number] if number < 4 else rng.randint(2, 4)


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")


def draw_ring_case(rng: random.Random, number: int) -> Case:
    """A flat tensor on each rank, of a size that the ranks divide evenly."""
    world_size = draw_world_size(rng, number)
    numel, dtype, seed = world_size * rng.randint(2, 4), DTYPES[number % 3], rng.getrandbits(32)
    return Case(
        world_size=world_size,
        args=lambda rank: (whole_numbers(numel, seed=seed, rank=rank, dtype=dtype),),
        about=f"{world_size} rank{'s' * (world_size > 1)}, {numel} elements, {dtype_name(dtype)}",
    )


LATE_SECONDS = 0.01


def while_rank_0_is_late(solution: Solution, *args: Any) -> Any:
    """Call `solution`, on rank 0 after a while: who does not wait for its message has nothing in hand by then."""
    if dist.get_rank() == 0:
        time.sleep(LATE_SECONDS)
    return solution(*args)


def while_src_is_late(solution: Solution, tensor: torch.Tensor, src: int) -> Any:
    """The same, on rank `src`."""
    if dist.get_rank() == src:
        time.sleep(LATE_SECONDS)
    return solution(tensor, src)
