"""The bytes of one rank when the ranks share some parts."""

import random

from ...exercises import Case, Exercise
from .data import GRADIENTS, OPTIMIZER, PRECISIONS, training_bytes

CUTS: tuple[list[str], ...] = (
    OPTIMIZER,
    OPTIMIZER + GRADIENTS,
    [*OPTIMIZER, *GRADIENTS, "parameters"],
    [],
    ["parameters", "fp32 gradients"],
    ["gradients", "first moment", "second moment"],
)


def draw(rng: random.Random, number: int) -> Case:
    psi, world_size, precision = rng.randint(500, 10_000), rng.randint(3, 64), PRECISIONS[number % 3]
    cut = CUTS[number % len(CUTS)]
    if number == 0:
        psi, world_size, precision = 7 * 10**9, 8, "mixed"
    else:
        psi += -psi % world_size + (1 if number % 2 else -1)  # rounds down, or leaves more than one over
    what = f"psi = {psi:,}, {precision}, {world_size} ranks, cut: {', '.join(cut) or 'nothing'}"
    return Case(world_size=0, args=lambda rank: (psi, precision, world_size, list(cut)), what=what)


exercise = Exercise("memory.rank_bytes", title="What is left when copies go", draw=draw, task="""
    Return a dict with the bytes of each part, as `training_bytes` does, on the rank that holds most. The psi
    elements of each part named in `cut` are cut over the ranks, as evenly as possible; an element is never split. Every
    rank holds the other parts whole.""", hints="""
    How many elements of a part that is cut does the fullest rank hold? How many of a part that is not cut?

    The largest share is psi divided by the number of ranks, rounded up. A share is like a smaller model, so
    `training_bytes` computes its bytes.

    `training_bytes(share, precision)`, and `-(-a // b)`, which divides whole numbers and rounds up.

    ```python
    share = ...
    whole, shard = training_bytes(psi, precision), training_bytes(..., precision)
    return {part: ... if part in cut else ... for part in whole}
    ```
    """, explanation="""
    A shard is like a model with fewer parameters, so one calculator computes both. Elements are cut, not bytes. The
    fullest rank has one element more if there is a remainder, and this rank decides whether the model fits. Cutting
    the optimizer's three parts is ZeRO stage 1; stage 2 cuts the gradients as well, and stage 3 the parameters.""")


@exercise
def rank_bytes(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    """Return the bytes of each part of the model states on the rank that holds most.

    The psi elements of each part named in `cut` are cut over the ranks as evenly as possible. Every
    rank holds the whole of the other parts. Parts and precisions are those of `training_bytes`.
    """
    share = -(-psi // world_size)  # rounded up
    whole, shard = training_bytes(psi, precision), training_bytes(share, precision)
    return {part: shard[part] if part in cut else whole[part] for part in whole}


SHARE = "-(-psi // world_size)"

exercise.edit("remainder-dropped", {SHARE: "psi // world_size"}, """
    `psi // world_size` drops the remainder, so no rank holds the last elements. Some rank has to hold them, and the
    fullest rank has one more. Next: round the share up.""")

exercise.edit("rounded-to-the-nearest", {SHARE: "round(psi / world_size)"}, """
    `round` rounds down where less than half of an element is left for each rank. Some rank still has to hold one more.
    Next: round the share up, in whole numbers.""")

exercise.edit("one-more-always", {SHARE: "psi // world_size + 1"}, """
    Your largest share has one element more even where psi divides evenly. Next: round the share up: that adds nothing
    where psi divides evenly.""")

exercise.edit("bytes-divided", {"shard[part]": "whole[part] // world_size"}, """
    You divide bytes, and drop the remainder. An element is never split, so the ranks share elements.
    Next: compute the largest share of elements, rounded up, then its bytes.""")

exercise.edit("broken-elements", {"shard[part]": "whole[part] / world_size"}, """
    Your `/` leaves a rank with a fraction of an element where psi does not divide. An element is never split.
    Next: share the elements first, in whole numbers, rounded up.""")

exercise.edit("cuts-everything", {" if part in cut else whole[part]": ""}, """
    You cut every part. Only the parts in `cut` are cut over the ranks; every rank holds the other parts whole.
    Next: test for each part whether it is in `cut`.""")

exercise.edit("cuts-nothing", {"shard[part] if part in cut else ": ""}, """
    You cut nothing: your dict has the bytes of plain data parallel.
    Next: return the bytes of a share for the parts in `cut`.""")

exercise.edit("masters-stay-whole", {"in cut": 'in set(cut) - {"master weights"}'}, """
    You leave the master weights whole. Only the optimizer uses them, as it does the moments, so they are cut,
    too: 12 bytes of each parameter, not 8. Next: treat "master weights" like every other part.""")

exercise.edit("any-cut-cuts-all", {"part in cut": "cut"}, """
    As soon as `cut` names any part, you cut every part: `if cut` tests whether the list is not empty.
    Next: ask for each part whether it is in the list.""")

exercise.edit("bytes-rounded-up", {"shard[part]": "-(-whole[part] // world_size)"}, """
    You divide bytes, and round up to a whole byte. An element is never split, so elements are cut, not bytes.
    Next: which number has to be rounded up, before you compute any bytes?""")

exercise.edit("one-rank-takes-the-rest", {SHARE: "psi // world_size + psi % world_size"}, """
    One rank takes the whole remainder. The task asks to cut as evenly as possible: then no rank holds more than one
    element more than another. Next: how large is the largest share, if the remainder is cut over the ranks, too?""")


@exercise.variant
def replaces(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    held = training_bytes(psi, precision)
    remainder = psi % world_size
    share = psi // world_size + (1 if remainder else 0)
    for part in cut:
        held[part] = training_bytes(share, precision)[part]
    return held


@exercise.variant
def by_element(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    share = (psi + world_size - 1) // world_size
    return {part: each * (share if part in cut else psi) for part, each in training_bytes(1, precision).items()}
