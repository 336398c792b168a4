"""The smallest world in which a model's states fit."""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil

from ..form.declare import Case, Exercise, Mistake
from . import stubs

SHARED = (0, 12, 14, 16)
"""Of the 16 bytes a parameter, those that each stage shards."""


def smallest_world(psi: int, stage: int, memory_bytes: int) -> int:
    """Return the smallest number of ranks whose model states fit, each rank in `memory_bytes`."""
    shared = (0, 12, 14, 16)[stage] * psi
    free = memory_bytes - (16 * psi - shared)  # what the parts that stay whole leave
    if free < 0 or (free == 0 and shared > 0):
        return 0
    return -(-shared // free) if shared else 1


def world_for(psi: int, shared: int, free: int) -> int:
    """As `smallest_world`, for what a mistake counts otherwise: bytes a parameter shared, and bytes that are free."""
    if free < 0 or (free == 0 and shared > 0):
        return 0
    return max(1, ceil(Fraction(shared * psi, free))) if shared else 1


def whole_forgotten(psi: int, stage: int, memory_bytes: int) -> int:
    return world_for(psi, 16, memory_bytes)


def shared_alone(psi: int, stage: int, memory_bytes: int) -> int:
    return world_for(psi, SHARED[stage], memory_bytes)


def rounded_down(psi: int, stage: int, memory_bytes: int) -> int:
    whole = (16 - SHARED[stage]) * psi
    if world_for(psi, SHARED[stage], memory_bytes - whole) == 0:
        return 0
    return max(1, SHARED[stage] * psi // max(1, memory_bytes - whole))


def one_to_spare(psi: int, stage: int, memory_bytes: int) -> int:
    whole = (16 - SHARED[stage]) * psi
    right = world_for(psi, SHARED[stage], memory_bytes - whole)
    return right if right == 0 or stage == 0 else SHARED[stage] * psi // (memory_bytes - whole) + 1


def power_of_two(psi: int, stage: int, memory_bytes: int) -> int:
    right = smallest_world(psi, stage, memory_bytes)
    return 1 << (right - 1).bit_length() if right else 0


def never_0(psi: int, stage: int, memory_bytes: int) -> int:
    free = max(1, memory_bytes - (16 - SHARED[stage]) * psi)
    return max(1, ceil(Fraction(SHARED[stage] * psi, free)))


def negative_world(psi: int, stage: int, memory_bytes: int) -> int:
    free = memory_bytes - (16 - SHARED[stage]) * psi
    return ceil(Fraction(SHARED[stage] * psi, free)) if free else 0


def masters_whole(psi: int, stage: int, memory_bytes: int) -> int:
    shared = (0, 8, 10, 12)[stage]
    return world_for(psi, shared, memory_bytes - (16 - shared) * psi)


def all_in_fp32(psi: int, stage: int, memory_bytes: int) -> int:
    shared = (0, 8, 12, 16)[stage]
    return world_for(psi, shared, memory_bytes - (16 - shared) * psi)


def gradients_forgotten(psi: int, stage: int, memory_bytes: int) -> int:
    shared = (0, 12, 12, 14)[stage]
    return world_for(psi, shared, memory_bytes - (14 - shared) * psi)


def parameters_first(psi: int, stage: int, memory_bytes: int) -> int:
    shared = (0, 2, 4, 16)[stage]
    return world_for(psi, shared, memory_bytes - (16 - shared) * psi)


def data_parallel_shards(psi: int, stage: int, memory_bytes: int) -> int:
    shared = (12, 12, 14, 16)[stage]
    return world_for(psi, shared, memory_bytes - (16 - shared) * psi)


def strictly_less(psi: int, stage: int, memory_bytes: int) -> int:
    return smallest_world(psi, stage, memory_bytes - 1)


def in_gib(psi: int, stage: int, memory_bytes: int) -> int:
    return smallest_world(psi, stage, memory_bytes * 2**30 // 10**9)


def by_doubling(psi: int, stage: int, memory_bytes: int) -> int:
    whole, shared = [(16, 0), (4, 12), (2, 14), (0, 16)][stage]

    def fits(ranks: int) -> bool:
        return ranks * whole * psi + shared * psi <= ranks * memory_bytes

    if whole * psi > memory_bytes or (whole * psi == memory_bytes and shared):
        return 0
    high = 1
    while not fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def by_fractions(psi: int, stage: int, memory_bytes: int) -> int:
    whole = Fraction([16, 4, 2, 0][stage] * psi)
    if whole + Fraction(16 * psi - whole, 10**30) > memory_bytes:
        return 0
    return ceil((16 * psi - whole) / (memory_bytes - whole)) if stage else 1


def draw(rng: random.Random, number: int) -> Case:
    psi, stage = rng.randint(10**9, 10**11), (3, 1, 2, 0, 1, 2, 0, 3)[number % 8]
    whole, shared = (16 - SHARED[stage]) * psi, SHARED[stage] * psi
    if number == 0:
        psi, memory_bytes = 70 * 10**9, 80 * 10**9
    elif number in (4, 6):  # too little, for any number of ranks
        memory_bytes = whole * 9 // 10
    elif number == 5:  # exactly enough, with 14 ranks
        memory_bytes = 3 * psi
    elif number in (3, 7):  # exactly enough for one
        memory_bytes = 16 * psi
    else:
        memory_bytes = whole + int(shared / rng.uniform(4.2, 4.8))
    about = f"psi = {psi:,}, stage {stage}, {memory_bytes:,} bytes a rank"
    return Case(world_size=0, args=lambda rank: (psi, stage, memory_bytes), about=about)


SMALLEST_WORLD = Exercise(
    name="capstone.smallest_world",
    title="The smallest world that fits",
    task="Return how many ranks it takes at least until the model states of each fit in `memory_bytes`: 16 bytes for "
    "each of `psi` parameters, of which stage 0 shares none among the ranks, stage 1 the optimizer's, stage 2 the "
    "gradients as well, and stage 3 all. Take a shard as an exact fraction, without padding. What fits exactly, fits. "
    "Return 0 where no number of ranks would do.",
    stub=stubs.smallest_world,
    reference=smallest_world,
    draw=draw,
    case_count=8,
    variants={"by-doubling": by_doubling, "by-fractions": by_fractions},
    mistakes=[
        Mistake(
            id="whole-forgotten",
            solution=whole_forgotten,
            told="You share all 16 bytes at every stage. That is stage 3; the stages before it keep something whole.",
            action="Take what the stage keeps whole off `memory_bytes` first.",
        ),
        Mistake(
            id="shared-alone",
            solution=shared_alone,
            told="You count what the stage shares, and not what it keeps whole. That needs room on every rank, too.",
            action="Take what the stage keeps whole off `memory_bytes` first.",
        ),
        Mistake(
            id="rounded-down",
            solution=rounded_down,
            told="The number of ranks is rounded down: with so few, a rank's share is a little too large.",
            action="Round up: `-(-a // b)`, or `math.ceil` of a `Fraction`.",
        ),
        Mistake(
            id="one-to-spare",
            solution=one_to_spare,
            told="You round down and add one. Where the division comes out even, that is one rank too many.",
            action="Round up: `-(-a // b)`.",
        ),
        Mistake(
            id="power-of-two",
            solution=power_of_two,
            told="You go up to a power of two. Worlds often have one, but none of this needs it.",
            action="Return the smallest number of all.",
        ),
        Mistake(
            id="never-0",
            solution=never_0,
            told="You return a number where what every rank keeps whole does not fit, however many ranks there are.",
            action="Ask first whether anything is left of `memory_bytes`.",
        ),
        Mistake(
            id="negative-world",
            solution=negative_world,
            told="Where what stays whole is larger than the memory, your division gives a number below 1, and so it "
            "does where nothing is shared.",
            action="Return 0 where what stays whole does not fit, and 1 where all that there is does.",
        ),
        Mistake(
            id="masters-whole",
            solution=masters_whole,
            told="You share 8 of the optimizer's 12 bytes. The fp32 master weights are the optimizer's as well.",
            action="Share 12 bytes at stage 1, and 2 more at each stage after it.",
        ),
        Mistake(
            id="all-in-fp32",
            solution=all_in_fp32,
            told="You count 4 bytes for a parameter, 4 for its gradient and 8 for the optimizer. That is fp32: also "
            "16, but shared otherwise.",
            action="Count 2, 2 and 12.",
        ),
        Mistake(
            id="gradients-forgotten",
            solution=gradients_forgotten,
            told="The gradients are missing: 2 bytes for each parameter, whole up to stage 1.",
            action="Count 16 bytes in all.",
        ),
        Mistake(
            id="parameters-first",
            solution=parameters_first,
            told="You share parameters first and the optimizer's states last. ZeRO begins with what is largest.",
            action="Share the optimizer's 12 bytes at stage 1, gradients from stage 2, parameters at stage 3.",
        ),
        Mistake(
            id="data-parallel-shards",
            solution=data_parallel_shards,
            told="Stage 0 shares something in your count. It is plain data parallel: more ranks save nothing.",
            action="At stage 0, return 1 or 0.",
        ),
        Mistake(
            id="strictly-less",
            solution=strictly_less,
            told="You ask for less than `memory_bytes`. What fits exactly, fits.",
            action="Compare with `<=`.",
        ),
        Mistake(
            id="in-gib",
            solution=in_gib,
            told="You take the memory for more than it is, by 2^30 / 10^9: it is given in bytes.",
            action="Use `memory_bytes` as it is.",
        ),
    ],
    hints=[
        "More ranks make one part of a rank's bytes smaller. Which part never shrinks?",
        "What stays whole has to fit on each rank; what it leaves is there for the share of the rest.",
        "With `whole` bytes and `shared` bytes, N ranks are enough if `whole + shared / N <= memory_bytes`. Solve for "
        "N.",
        "```python\nshared = (0, 12, 14, 16)[stage] * psi\nfree = memory_bytes - ...\nif free < 0 or ...:\n"
        "    return 0\nreturn -(-shared // free) if shared else ...\n```",
    ],
    explanation="From `whole + shared / N <= memory_bytes` follows `N >= shared / free`, with `free = memory_bytes - "
    "whole`; N is whole, so it is rounded up, in integers: at 10^12 bytes a float is not exact. Where nothing is free, "
    "no number of ranks helps, and you need the next stage.",
)
