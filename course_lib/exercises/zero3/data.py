"""The cases of the exercises of lesson 06, and the units that they are tried on."""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from ...meter import mark
from ..data_parallel.data import ranks
from ..declare import Case
from ..ranks.data import dtype_name, whole_numbers
from .unit import Unit

Shapes = list[tuple[int, ...]]

DTYPES = (torch.float32, torch.float64)


def draw_world_size(rng: random.Random, number: int) -> int:
    """2, 4, 3 and 1 ranks, in the first four draws; then any of 2, 3 and 4."""
    return (2, 4, 3, 1)[number] if number < 4 else rng.randint(2, 4)


def draw_shapes(rng: random.Random, world_size: int) -> Shapes:
    """Shapes of three parameters. Together they do not divide, unless there is one rank."""
    while True:
        shapes: Shapes = [(rng.randint(5, 8), rng.randint(6, 9)), (rng.randint(1, 5),), (rng.randint(5, 8), 7)]
        if world_size == 1 or sum(map(numel, shapes)) % world_size:
            return shapes


def numel(shape: Sequence[int]) -> int:
    """How many elements a tensor of that shape has."""
    return torch.Size(shape).numel()


def draw_params(rng: random.Random, number: int) -> Case:
    """Shapes, dtype and seed of three parameters. In float16, which padding of float32 would promote."""
    world_size, dtype = draw_world_size(rng, number), (torch.float32, torch.float16)[number % 2]
    shapes, seed = draw_shapes(rng, world_size), rng.getrandbits(32)
    return Case(
        world_size=world_size,
        args=lambda rank: (shapes, dtype, seed),
        about=f"{ranks(world_size)}, parameters of shapes {', '.join(str(list(shape)) for shape in shapes)}, "
        f"{sum(map(numel, shapes))} elements, {dtype_name(dtype)}",
    )


class Holder(nn.Module):
    """A module that has parameters of given shapes, alike on every rank."""

    def __init__(self, shapes: Shapes, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        drawn = (whole_numbers(*shape, seed=seed, rank=place, dtype=dtype) for place, shape in enumerate(shapes))
        self.params = nn.ParameterList(nn.Parameter(values) for values in drawn)


def poisoned_unit(module: nn.Module) -> Unit:
    """A unit whose padding is NaN: whoever takes it for a parameter has NaN there."""
    unit = Unit(module)
    unpadded = sum(map(numel, unit.shapes)) - dist.get_rank() * unit.shard.numel()
    unit.shard.data[max(0, unpadded) :] = torch.nan
    return unit


def last_rank_comes_later(start: Callable[[], None]) -> None:
    """Call `start`, on the last rank only when it has returned on all others: who waits in it, waits for ever."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for other in range(last) if rank == last else ():
        dist.recv(torch.zeros(1), src=other)
    start()
    if rank < last:
        dist.send(torch.zeros(1), dst=last)


Memory = list[weakref.ref[torch.UntypedStorage]]


def memory_of(tensors: Iterable[torch.Tensor]) -> Memory:
    """What `mark_when_gone` is to wait for."""
    return [weakref.ref(tensor.untyped_storage()) for tensor in tensors]


def mark_when_gone(label: str, memory: Memory) -> None:
    """Mark as soon as `memory` is freed, or after 50 ms: each known mistake that keeps memory waits so long.

    On a busy machine, gloo's threads drop a tensor later than the meter waits for them.
    """
    deadline = time.monotonic() + 0.05
    while any(storage() is not None for storage in memory) and time.monotonic() < deadline:
        time.sleep(0.001)
    mark(label)
