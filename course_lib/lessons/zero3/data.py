"""Shared parts of lesson 06's exercises: cases, calls that are started in time, and memory that is measured."""

import random
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from ...exercises import Case, Finding, Observation, Rule, Trial, dtype_name, whole_numbers
from ...meter import mark

Shapes = list[tuple[int, ...]]

DTYPES = (torch.float32, torch.float64)


def draw_world_size(rng: random.Random, number: int) -> int:
    """Return 2, 4, 3 and 1 ranks in the first four draws; then any of 2, 3 and 4."""
    return (2, 4, 3, 1)[number] if number < 4 else rng.randint(2, 4)


def draw_shapes(rng: random.Random, world_size: int) -> Shapes:
    """Return shapes of three parameters. Unless there is one rank, it does not divide their number of elements."""
    while True:
        shapes: Shapes = [(rng.randint(5, 8), rng.randint(6, 9)), (rng.randint(1, 5),), (rng.randint(5, 8), 7)]
        if world_size == 1 or total_numel(shapes) % world_size:
            return shapes


def total_numel(shapes: Iterable[tuple[int, ...]]) -> int:
    """Return the number of elements of tensors of these shapes."""
    return sum(torch.Size(shape).numel() for shape in shapes)


def draw_params(rng: random.Random, number: int) -> Case:
    """Draw shapes, dtype and seed of three parameters. Zeros in float32 promote float16, and round float64."""
    world_size, dtype = draw_world_size(rng, number), (torch.float32, torch.float16, torch.float64)[number % 3]
    shapes, seed = draw_shapes(rng, world_size), rng.getrandbits(32)
    return Case(
        world_size=world_size,
        args=lambda rank: (shapes, dtype, seed),
        what=f"parameters of shapes {', '.join(str(list(shape)) for shape in shapes)}, "
        f"{total_numel(shapes)} elements, {dtype_name(dtype)}",
    )


class Holder(nn.Module):
    """A module with parameters of given shapes, equal on every rank. Those in float64 are no numbers of float32."""

    def __init__(self, shapes: Shapes, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        drawn = (whole_numbers(*shape, seed=seed, rank=place, dtype=dtype) for place, shape in enumerate(shapes))
        digits = 1 + 2**-30 if dtype == torch.float64 else 1
        self.params = nn.ParameterList(nn.Parameter(values * digits) for values in drawn)


Memory = list[weakref.ref[torch.UntypedStorage]]


def memory_of(tensors: Iterable[torch.Tensor]) -> Memory:
    """Return weak references to the memory of `tensors`, for `mark_when_gone`."""
    return [weakref.ref(tensor.untyped_storage()) for tensor in tensors]


def mark_when_gone(label: str, memory: Memory) -> None:
    """Mark as soon as `memory` is freed, and after 50 ms at the latest.

    A thread of gloo holds a tensor for a moment after the collective has ended; without the wait, a right solution
    would seem to hold it. A solution that really keeps the memory costs 50 ms in each case.
    """
    deadline = time.monotonic() + 0.05
    while any(storage() is not None for storage in memory) and time.monotonic() < deadline:
        time.sleep(0.001)
    mark(label)


def one_call_in_time(op: str) -> Rule:
    """Require one `op` on each rank, started before the solution returns. The other calls are the trial's.

    A late start is reported first: the trial may call twice the function in which the call starts, and so make two.
    """

    def rule(trial: Trial) -> Iterator[Finding]:
        for rank, (expected, yours) in enumerate(zip(_ops(trial.expected), _ops(trial.yours), strict=True)):
            made = Counter(yours) - (Counter(expected) - Counter([op]))
            if made[op] and yours[: yours.index(op)].count("send") > expected[: expected.index(op)].count("send"):
                yield Finding(
                    observed=f"rank {rank} had not started its {op} when the function returned.",
                    action=f"Start the {op} before you return, with `async_op=True`.",
                )
                break
            if made != Counter([op]):
                listed = ", ".join(f"{count} {name}" for name, count in sorted(made.items())) or "no call"
                yield Finding(
                    observed=f"rank {rank} made {listed}; the task asks for 1 {op}.",
                    action=f"One call of `dist.{op}_single` does it for all parameters.",
                )
                break

    return rule


def _ops(observation: Observation) -> list[list[str]]:
    return [[call.op for call in calls] for calls in observation.calls]
