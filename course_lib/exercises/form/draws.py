"""Draws that exercises share: world sizes, and tensors from a seed."""

import random

import torch

DTYPES = (torch.float32, torch.int64, torch.float64)


def whole_numbers(*shape: int, seed: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return whole numbers from -500 to 500, different on each rank: their sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed + rank)
    return torch.randint(-500, 501, shape, generator=generator).to(dtype)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normal numbers, the same for the same seed. Add the rank to the seed for values of a rank's own."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def draw_world_size(rng: random.Random, number: int) -> int:
    """Return 2, 3, 4 and 1 ranks in the first four draws; then any of 2, 3 and 4."""
    return (2, 3, 4, 1)[number] if number < 4 else rng.randint(2, 4)


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32`."""
    return str(dtype).removeprefix("torch.")
