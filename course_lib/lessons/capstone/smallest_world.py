"""Find the smallest world in which a model's states fit."""

import random
from fractions import Fraction
from math import ceil

from ...exercises import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    psi, stage = rng.randint(10**9, 10**11), (3, 1, 2, 0, 1, 2, 0, 3)[number % 8]
    sharded = (0, 12, 14, 16)[stage] * psi
    whole = 16 * psi - sharded
    if number == 0:
        psi, memory_bytes = 70 * 10**9, 80 * 10**9
    elif number in (4, 6):  # too little, for any number of ranks
        memory_bytes = whole * 9 // 10
    elif number == 5:  # exactly enough, with 35 ranks; `ceil(14 / (memory_bytes / psi - 2))` is 36
        psi -= psi % 5
        memory_bytes = 2 * psi + 14 * psi // 35
    elif number in (3, 7):  # exactly enough for one
        memory_bytes = 16 * psi
    elif number == 10:  # less than a byte too little for 3 ranks
        psi += 1 - psi % 3
        memory_bytes = 2 * psi + 14 * psi // 3
    elif number == 9:  # exactly enough for what stays whole, so nothing is left for a shard
        memory_bytes = whole
    else:
        few, many = (40_000, 50_000) if number == 8 else (4.2, 4.8)
        memory_bytes = whole + int(sharded / rng.uniform(few, many))
    what = f"psi = {psi:,}, stage {stage}, {memory_bytes:,} bytes a rank"
    return Case(world_size=0, args=lambda rank: (psi, stage, memory_bytes), what=what)


exercise = Exercise("capstone.smallest_world", title="The smallest world that fits", draw=draw, case_count=11, task="""
    Return the smallest number of ranks with which each rank's model states fit in `memory_bytes`. The model has `psi`
    parameters, with 16 bytes for each. Stage 0 shards none of these bytes over the ranks. Stage 1 shards the
    optimizer's bytes, stage 2 the gradients as well, and stage 3 everything. Take a shard as an exact fraction, without
    padding. Exactly `memory_bytes` still fits. Return 0 if no number of ranks is enough.""", hints="""
    With more ranks, one part of a rank's bytes becomes smaller. Which part stays the same?

    The part that stays whole has to fit on each rank. The rank's shard of the rest has to fit in the memory that is
    left.

    With `whole` bytes and `sharded` bytes, N ranks are enough if `whole + sharded / N <= memory_bytes`. Solve for N.

    ```python
    sharded = (0, 12, 14, 16)[stage] * psi
    free = memory_bytes - ...
    if free < 0 or ...:
        return 0
    return -(-sharded // free) if sharded else ...
    ```
    """, explanation="""
    From `whole + sharded / N <= memory_bytes` follows `N >= sharded / free`, with `free = memory_bytes - whole`. N is
    a whole number, so round up, and compute with integers: a float such as `memory_bytes / psi` is rounded, and can
    cost one rank where the division leaves no remainder. If nothing is free, no number of ranks helps, and you need the
    next stage.""")


@exercise
def smallest_world(psi: int, stage: int, memory_bytes: int) -> int:
    """Return the smallest number of ranks with which each rank's model states fit in `memory_bytes`.

    Adam in mixed precision: 2 bytes a parameter, 2 for its gradient, 12 for the optimizer. Shards
    are exact fractions. Return 0 if no number of ranks is enough.
    """
    sharded = (0, 12, 14, 16)[stage] * psi
    free = memory_bytes - (16 * psi - sharded)  # what the parts that stay whole leave
    if free < 0 or (free == 0 and sharded > 0):
        return 0
    return -(-sharded // free) if sharded else 1


exercise.edit("whole-forgotten", {"(0, 12, 14, 16)[stage]": "16"}, """
    You shard all 16 bytes at every stage. Only stage 3 does this; the earlier stages keep a part whole on each rank.
    Next: subtract from `memory_bytes` first what the stage keeps whole.""")

exercise.edit("rounded-down", {"-(-sharded // free)": "max(1, sharded // free)"}, """
    You round the number of ranks down. With one rank too few, each rank's shard is a little too large.
    Next: round up.""")

exercise.edit("rounded-to-the-nearest", {"-(-sharded // free)": "max(1, round(sharded / free))"}, """
    You round to the nearest whole number, which is down where the remainder is small. With one rank too few, each
    rank's shard is a little too large. Next: round up.""")

exercise.edit("one-to-spare", {"-(-sharded // free)": "sharded // free + 1"}, """
    Where the division leaves no remainder, your number is one rank too many, as if you round down and add one.
    Next: round up: that adds nothing where no remainder is left.""")

exercise.edit("in-floats", {"(0, 12, 14, 16)[stage] * psi": "(0, 12, 14, 16)[stage]", "memory_bytes -":
    "memory_bytes / psi -", "16 * psi": "16", "-(-sharded // free)": "ceil(sharded / free)"}, """
    You round before the end: with floats, such as the bytes per parameter, or with a rank's share in whole parameters.
    So where the division leaves no remainder, the result can be a little too large, and rounding up adds a rank.
    Next: compute with integers: multiply by `psi` first, and round up once, at the end.""")

exercise.edit("never-0", {"if free < 0 or (free == 0 and sharded > 0):\nreturn 0": "free = max(1, free)"}, """
    You never return 0. If the part that stays whole does not fit, no number of ranks is enough.
    Next: return 0 if the part that stays whole leaves no memory for the shard.""")

exercise.edit("less-than-nothing", {"if free < 0 or (free == 0 and sharded > 0):\nreturn 0\n": ""}, """
    You divide by the memory that is left, and here none is left: the part that stays whole is too large. Next: return 0
    where no memory is left for the shard.""")

exercise.edit("divides-by-nothing", {"free < 0 or (free == 0 and sharded > 0)": "free < 0"}, """
    You divide by the memory that is left, and here it is exactly 0 bytes. Next: return 0 in this case too, unless the
    stage has no shard.""")

exercise.edit("stage-0-never-fits", {"free < 0 or (free == 0 and sharded > 0)": "free <= 0"}, """
    You return 0 as soon as nothing is left for a shard. At stage 0 no rank has a shard, so nothing has to be left.
    Next: what does a rank need at stage 0, if 16 bytes for each parameter just fit?""")

exercise.edit("masters-whole", {"(0, 12, 14, 16)": "(0, 8, 10, 12)"}, """
    You shard 8 of the optimizer's 12 bytes. The fp32 master weights, 4 bytes, belong to the optimizer too.
    Next: shard 12 bytes at stage 1, and 2 more at each later stage.""")

exercise.edit("gradients-whole-at-2", {"(0, 12, 14, 16)": "(0, 12, 12, 16)"}, """
    You shard only the optimizer's 12 bytes at stage 2. Stage 2 also shards the 2 bytes of the gradients.
    Next: shard 14 bytes at stage 2.""")

exercise.edit("at-most-1024", {"return -(-sharded // free) if sharded else 1":
    "needed = -(-sharded // free) if sharded else 1\nreturn needed if needed <= 1024 else 0"}, """
    You return 0 where many thousand ranks are needed, as a search does that ends too early.
    Next: compute the number from an inequality instead of trying one number after the other.""")

exercise.edit("powers-of-two", {"-(-sharded // free)": "2 ** (-(-sharded // free) - 1).bit_length()"}, """
    Your number of ranks is always a power of two, as from a search that doubles the number until the states fit.
    Between two powers of two, a smaller number can be enough.
    Next: compute the number from an inequality instead of trying one number after the other.""")

exercise.edit("strictly-less", {"memory_bytes -": "memory_bytes - 1 -"}, """
    You require less than `memory_bytes`. Exactly `memory_bytes` still fits. Next: let a rank be full to the last
    byte.""")


@exercise.variant
def case_by_case(psi: int, stage: int, memory_bytes: int) -> int:
    free = memory_bytes - (16, 4, 2, 0)[stage] * psi
    if stage == 0:
        return int(free >= 0)
    return max(0, ((12, 14, 16)[stage - 1] * psi + free - 1) // free) if free > 0 else 0


@exercise.variant
def by_fractions(psi: int, stage: int, memory_bytes: int) -> int:
    whole = Fraction([16, 4, 2, 0][stage] * psi)
    if whole + Fraction(16 * psi - whole, 10**30) > memory_bytes:
        return 0
    return ceil((16 * psi - whole) / (memory_bytes - whole)) if stage else 1
