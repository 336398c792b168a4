"""The bytes of each part of the model states, by precision."""

from __future__ import annotations

import random
from collections.abc import Callable

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs

PRECISIONS = ("fp32", "mixed", "mixed_fp32_accumulation")
PARTS = ("parameters", "gradients", "fp32 gradients", "master weights", "momentum", "variance")


def training_bytes(psi: int, precision: str) -> dict[str, int]:
    """Return the bytes of each part of the model states, for psi parameters and Adam."""
    mixed = precision != "fp32"
    return {
        "parameters": (2 if mixed else 4) * psi,
        "gradients": (2 if mixed else 4) * psi,
        "fp32 gradients": (4 if precision == "mixed_fp32_accumulation" else 0) * psi,
        "master weights": (4 if mixed else 0) * psi,
        "momentum": 4 * psi,
        "variance": 4 * psi,
    }


FP32, MIXED, SUMMED = (4, 4, 0, 0, 4, 4), (2, 2, 0, 4, 4, 4), (2, 2, 4, 4, 4, 4)


def table(*rows: tuple[int, ...]) -> Solution:
    """A calculator by a table: a row for each of `PRECISIONS`, with the bytes for each parameter of each of `PARTS`."""
    by_precision = dict(zip(PRECISIONS, rows, strict=True))

    def calculator(psi: int, precision: str) -> dict[str, int]:
        return {part: each * psi for part, each in zip(PARTS, by_precision[precision], strict=True)}

    return calculator


def moments_in_one(psi: int, precision: str) -> dict[str, int]:
    right = training_bytes(psi, precision)
    return right | {"momentum": right["momentum"] + right["variance"], "variance": 0}


def converted(convert: Callable[[int], float]) -> Solution:
    """The right bytes of each part, in another unit."""
    return lambda psi, precision: {part: convert(n) for part, n in training_bytes(psi, precision).items()}


def elements(psi: int, precision: str) -> dict[str, int]:
    return {part: psi if nbytes else 0 for part, nbytes in training_bytes(psi, precision).items()}


def absent_parts_left_out(psi: int, precision: str) -> dict[str, int]:
    return {part: nbytes for part, nbytes in training_bytes(psi, precision).items() if nbytes}


def by_cases(psi: int, precision: str) -> dict[str, int]:
    held = {"momentum": psi * 4, "variance": psi * 4, "fp32 gradients": 0}
    if precision == "fp32":
        return held | {"parameters": psi * 4, "gradients": psi * 4, "master weights": 0}
    held |= {"parameters": psi * 2, "gradients": psi * 2, "master weights": psi * 4}
    if precision == "mixed_fp32_accumulation":
        held["fp32 gradients"] += psi * 4
    return held


def draw(rng: random.Random, number: int) -> Case:
    psi, precision = (7 * 10**9 if number == 0 else rng.randint(10**3, 10**6)), ("mixed", *PRECISIONS[::2])[number % 3]
    return Case(world_size=0, args=lambda rank: (psi, precision), about=f"psi = {psi:,}, {precision}")


MIXED_PRECISION = Exercise(
    name="memory.mixed_precision",
    title="The calculator",
    task='Return a dict with the bytes of six parts: `"parameters"`, `"gradients"`, `"fp32 gradients"`, '
    '`"master weights"`, `"momentum"` and `"variance"`. `precision` is `"fp32"`, `"mixed"`, or '
    '`"mixed_fp32_accumulation"`: as mixed, with a second gradient in fp32 in which those of micro-batches are '
    "summed. A part that there is not has 0 bytes.",
    stub=stubs.training_bytes,
    reference=training_bytes,
    draw=draw,
    variants={"table": table(FP32, MIXED, SUMMED), "cases": by_cases},
    mistakes=[
        Mistake(
            id="no-master-weights",
            solution=table(FP32, (2, 2, 0, 0, 4, 4), (2, 2, 4, 0, 4, 4)),
            told="Mixed precision lacks its master weights. An update is often too small to change a number of 16 "
            "bits, so the optimizer updates a copy in fp32.",
            action="Give mixed precision 4 bytes of master weights.",
        ),
        Mistake(
            id="all-in-16-bits",
            solution=table(FP32, (2, 2, 0, 0, 2, 2), (2, 2, 4, 0, 2, 2)),
            told="In your mixed precision everything has 16 bits. What makes it *mixed* is that whatever the "
            "optimizer works on stays in fp32: master weights, momentum and variance.",
            action="Give each of these three 4 bytes.",
        ),
        Mistake(
            id="moments-in-16-bits",
            solution=table(FP32, (2, 2, 0, 4, 2, 2), (2, 2, 4, 4, 2, 2)),
            told="Momentum and variance have 16 bits. They belong to the fp32 master weights, and are in fp32 too.",
            action="Give each of the two 4 bytes.",
        ),
        Mistake(
            id="gradients-in-fp32",
            solution=table(FP32, (2, 4, 0, 4, 4, 4), (2, 4, 4, 4, 4, 4)),
            told="The gradients have 4 bytes in mixed precision. Backward makes them like the parameters, in 16 bits. "
            "Those that are summed in fp32 are a part of their own.",
            action='Give "gradients" 2 bytes.',
        ),
        Mistake(
            id="sums-in-place-of-gradients",
            solution=table(FP32, MIXED, (2, 0, 4, 4, 4, 4)),
            told="The fp32 gradients replace those of 16 bits. Backward still makes the latter, before they are added "
            "to the sums, so both are held.",
            action="Leave the 2 bytes of the gradients beside the 4 of their sums.",
        ),
        Mistake(
            id="wider-gradients",
            solution=table(FP32, MIXED, (2, 4, 0, 4, 4, 4)),
            told="With fp32 accumulation you make the gradients wider. They keep their 16 bits; what comes is a "
            'second set, under "fp32 gradients".',
            action='Give "gradients" 2 bytes and "fp32 gradients" 4.',
        ),
        Mistake(
            id="sums-under-gradients",
            solution=table(FP32, MIXED, (2, 6, 0, 4, 4, 4)),
            told='The bytes are right in sum, but those of the fp32 gradients stand under "gradients".',
            action='Give "fp32 gradients" its own 4 bytes.',
        ),
        Mistake(
            id="sums-in-16-bits",
            solution=table(FP32, MIXED, (2, 2, 2, 4, 4, 4)),
            told="The sums of gradients have 2 bytes. They are there to be in fp32: sums of many small numbers lose "
            "much in 16 bits.",
            action='Give "fp32 gradients" 4 bytes.',
        ),
        Mistake(
            id="always-summed",
            solution=table(FP32, SUMMED, SUMMED),
            told='Plain "mixed" has fp32 gradients in your calculation. They are an option, which has its own name.',
            action='Count them for "mixed_fp32_accumulation" alone.',
        ),
        Mistake(
            id="never-summed",
            solution=table(FP32, MIXED, MIXED),
            told='"mixed_fp32_accumulation" comes out as "mixed": the fp32 gradients are missing.',
            action='Give "fp32 gradients" 4 bytes there.',
        ),
        Mistake(
            id="summed-without-masters",
            solution=table(FP32, MIXED, (2, 2, 4, 0, 4, 4)),
            told='"mixed_fp32_accumulation" has no master weights. The fp32 sums are of gradients; parameters need '
            "their fp32 copies all the same.",
            action='Give "master weights" 4 bytes in both mixed precisions.',
        ),
        Mistake(
            id="masters-of-fp32",
            solution=table((4, 4, 0, 4, 4, 4), MIXED, SUMMED),
            told="There are master weights in fp32 as well. There the parameters themselves are in fp32, and need no "
            "copy.",
            action='Give "master weights" 0 bytes in fp32.',
        ),
        Mistake(
            id="masters-in-16-bits",
            solution=table(FP32, (2, 2, 0, 2, 4, 4), (2, 2, 4, 2, 4, 4)),
            told="The master weights have 16 bits, like the parameters. Then they would be of no use: they are there "
            "to hold what 16 bits cannot.",
            action='Give "master weights" 4 bytes.',
        ),
        Mistake(
            id="parameters-stay-fp32",
            solution=table(FP32, (4, 2, 0, 4, 4, 4), (4, 2, 4, 4, 4, 4)),
            told="The parameters stay in fp32, and have a copy in fp32. Forward and backward use them in 16 bits.",
            action='Give "parameters" 2 bytes in mixed precision.',
        ),
        Mistake(
            id="always-mixed",
            solution=table(MIXED, MIXED, SUMMED),
            told="fp32 comes out as mixed precision. There nothing has 16 bits.",
            action='Give parameters and gradients 4 bytes where the precision is "fp32", and no master weights.',
        ),
        Mistake(
            id="always-fp32",
            solution=table(FP32, FP32, FP32),
            told="Everything is counted in fp32, whatever the precision.",
            action="Let `precision` decide what has 2 bytes and what has 4.",
        ),
        Mistake(
            id="nothing-in-16-bits",
            solution=table(FP32, (4, 4, 0, 4, 4, 4), (4, 4, 4, 4, 4, 4)),
            told="In your mixed precision nothing has 16 bits. The parameters that forward uses have, and so have the "
            "gradients that backward makes.",
            action='Give "parameters" and "gradients" 2 bytes each.',
        ),
        Mistake(
            id="masters-under-parameters",
            solution=table(FP32, (6, 2, 0, 0, 4, 4), (6, 2, 4, 0, 4, 4)),
            told='The master weights stand under "parameters". They are a part of their own, which only the optimizer '
            "uses.",
            action='Give "parameters" 2 bytes and "master weights" 4.',
        ),
        Mistake(
            id="moments-in-one",
            solution=moments_in_one,
            told='Both moments stand under "momentum", and "variance" has 0 bytes.',
            action="Give each of the two 4 bytes.",
        ),
        Mistake(
            id="elements",
            solution=elements,
            told="Every part is counted with 1 byte for each parameter: these are numbers of elements.",
            action="Multiply by the bytes of an element: 2 in 16 bits, 4 in fp32.",
        ),
        Mistake(
            id="bits",
            solution=converted(lambda nbytes: 8 * nbytes),
            told="Everything is 8 times too large: these are bits. A byte has 8 of them.",
            action="Count 2 for 16 bits and 4 for 32.",
        ),
        Mistake(
            id="gigabytes",
            solution=converted(lambda nbytes: nbytes / 10**9),
            told="These are GB. The function gives bytes; units are for those who print them.",
            action="Leave out the division by 10**9.",
        ),
        Mistake(
            id="gibibytes",
            solution=converted(lambda nbytes: nbytes / 2**30),
            told="These are GiB. The function gives bytes; units are for those who print them.",
            action="Leave out the division by 2**30.",
        ),
        Mistake(
            id="only-the-total",
            solution=lambda psi, precision: sum(training_bytes(psi, precision).values()),
            told="The sum of all parts is returned. Asked is how much each of them is.",
            action="Return the dict. Whoever wants the sum takes `sum(parts.values())`.",
        ),
        Mistake(
            id="absent-parts-left-out",
            solution=absent_parts_left_out,
            told="Parts that there are not are missing in the dict. It has all six, some of them with 0 bytes.",
            action="Give a part that is not there 0 bytes.",
        ),
    ],
    hints=[
        "Who needs which numbers, and how exact must they be? Forward and backward are content with 16 bits. Is the "
        "optimizer?",
        "In mixed precision what forward and backward use has 16 bits, and what the optimizer works on has 32: a "
        "master copy of the weights and Adam's two moments. In fp32 there is nothing to copy.",
        "Per parameter: 4 + 4 + 0 + 0 + 4 + 4 in fp32; 2 + 2 and 4 for each of three in mixed; 4 more with the option.",
        '```python\nmixed = precision != "fp32"\nreturn {\n    "parameters": (2 if mixed else 4) * psi,\n    ...\n'
        '    "master weights": (4 if mixed else ...) * psi,\n    ...\n}\n```',
    ],
    explanation="fp32: 4 + 4 + 4 + 4 = 16 bytes for each parameter. Mixed: 2 + 2 + (4 + 4 + 4) = 16 as well: what "
    "parameters and gradients save, the master weights cost. The ZeRO paper calls the 12 bytes in brackets K (section "
    "3.1). Sums of gradients in fp32 make it 20. What mixed precision does save is time, on hardware that computes "
    "faster in 16 bits, and activations.",
)
