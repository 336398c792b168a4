"""What overlap saves: forward of stage 3 as a schedule."""

from __future__ import annotations

import random

from ..form.declare import Case, Exercise, Mistake
from . import stubs


def forward_seconds(gather: list[float], compute: list[float], ahead: int) -> float:
    """Return how long the forward of stage 3 takes. Unit i is gathered in gather[i], computed in compute[i]."""
    gathered, computed = [0.0], [0.0]  # when units were: unit i at place i + 1, and the start at place 0
    for i in range(len(compute)):
        room = computed[max(i - ahead, 0)]
        gathered.append(max(gathered[-1], room) + gather[i])
        computed.append(max(gathered[-1], computed[-1]) + compute[i])
    return computed[-1]


def one_after_the_other(gather: list[float], compute: list[float], ahead: int) -> float:
    return sum(gather) + sum(compute)


def longer_of_the_sums(gather: list[float], compute: list[float], ahead: int) -> float:
    return max(sum(gather), sum(compute))


def longer_of_each(gather: list[float], compute: list[float], ahead: int) -> float:
    return sum(map(max, gather, compute))


def all_of_memory(gather: list[float], compute: list[float], ahead: int) -> float:
    return forward_seconds(gather, compute, len(gather))


def one_ahead(gather: list[float], compute: list[float], ahead: int) -> float:
    return forward_seconds(gather, compute, 1)


def one_too_many(gather: list[float], compute: list[float], ahead: int) -> float:
    return forward_seconds(gather, compute, ahead + 1)


def one_too_few(gather: list[float], compute: list[float], ahead: int) -> float:
    return forward_seconds(gather, compute, max(ahead - 1, 0))


def computing_alone(gather: list[float], compute: list[float], ahead: int) -> float:
    return sum(compute)


def first_gather_free(gather: list[float], compute: list[float], ahead: int) -> float:
    return forward_seconds([0.0, *gather[1:]], compute, ahead)


def only_the_first_gather(gather: list[float], compute: list[float], ahead: int) -> float:
    return gather[0] + sum(compute)


def gathers_ahead_at_first(gather: list[float], compute: list[float], ahead: int) -> float:
    return sum(gather[: ahead + 1]) + sum(compute)


def gathers_side_by_side(gather: list[float], compute: list[float], ahead: int) -> float:
    computed = [0.0]
    for i in range(len(compute)):
        computed.append(max(computed[max(i - ahead, 0)] + gather[i], computed[-1]) + compute[i])
    return computed[-1]


def computes_side_by_side(gather: list[float], compute: list[float], ahead: int) -> float:
    gathered, computed = [0.0], [0.0]
    for i in range(len(compute)):
        gathered.append(max(gathered[-1], computed[max(i - ahead, 0)]) + gather[i])
        computed.append(gathered[-1] + compute[i])
    return max(computed)


def only_what_shows(gather: list[float], compute: list[float], ahead: int) -> float:
    return forward_seconds(gather, compute, ahead) - sum(compute)


def last_not_computed(gather: list[float], compute: list[float], ahead: int) -> float:
    return forward_seconds(gather, [*compute[:-1], 0.0], ahead)


def by_recursion(gather: list[float], compute: list[float], ahead: int) -> float:
    def gathered(unit: int) -> float:
        if unit < 0:
            return 0.0
        return max(gathered(unit - 1), computed(unit - ahead - 1)) + gather[unit]

    def computed(unit: int) -> float:
        return max(gathered(unit), computed(unit - 1)) + compute[unit] if unit >= 0 else 0.0

    return computed(len(gather) - 1)


def by_clocks(gather: list[float], compute: list[float], ahead: int) -> float:
    network = device = 0.0
    ends: list[float] = []
    for number, (fetch, work) in enumerate(zip(gather, compute, strict=True)):
        if number > ahead:
            network = max(network, ends[number - ahead - 1])
        network += fetch
        device = max(device, network) + work
        ends.append(device)
    return device


def draw(rng: random.Random, number: int) -> Case:
    units, ahead = (3, 5, 6, 4, 7, 6)[number % 6], (1, 0, 2, 5, 1, 2)[number % 6]
    gather, compute = ([rng.randint(10, 99) / 10 for _ in range(units)] for _ in range(2))
    if number == 0:
        gather, compute = [2.1, 1.9, 4.3], [3.2, 2.9, 3.1]
    elif number < 3:  # computing is slow at first, then gathering is: each unit of memory tells
        gather, compute = [1.3, 2.1, 1.1, 3.7, 7.1, 8.3][-units:], [9.7, 6.1, 5.3, 2.3, 1.9, 3.1][:units]
    about = f"gather {gather}, compute {compute}, {ahead} ahead"
    return Case(world_size=0, args=lambda rank: (list(gather), list(compute), ahead), about=about)


OVERLAP = Exercise(
    name="costs.overlap",
    title="A schedule, not a sum",
    task="Return when the last unit has computed. Gathers run one at a time, in order; so do computations, beside "
    "them. Unit i computes when it is gathered and unit i−1 has computed. Its gather begins when the gather before it "
    "has ended and, because memory is short, unit `i - ahead - 1` has computed (where there is such a unit).",
    stub=stubs.forward_seconds,
    reference=forward_seconds,
    draw=draw,
    variants={"recursion": by_recursion, "clocks": by_clocks},
    mistakes=[
        Mistake(
            id="one-after-the-other",
            solution=one_after_the_other,
            told="Nothing runs beside anything in your schedule: it is the sum of all times, right for `ahead=0` only.",
            action="Keep two clocks, one for gathers and one for computing.",
        ),
        Mistake(
            id="longer-of-the-sums",
            solution=longer_of_the_sums,
            told="You take the longer of the two sums, as if everything could overlap. The first unit cannot compute "
            "before it is gathered, and nothing is gathered under the last.",
            action="Go through the units, and note when each is gathered and computed.",
        ),
        Mistake(
            id="longer-of-each",
            solution=longer_of_each,
            told="You let each unit compute while it is gathered itself. It computes when it is there; what can be "
            "gathered meanwhile is a later one.",
            action="Let unit i compute after its own gather has ended.",
        ),
        Mistake(
            id="all-of-memory",
            solution=all_of_memory,
            told="Gathers run as far ahead as they like. With `ahead` units gathered that have not computed yet, the "
            "next has to wait for room.",
            action="Let gather i wait until unit i - ahead - 1 has computed.",
        ),
        Mistake(
            id="one-ahead",
            solution=one_ahead,
            told="Your schedule gathers one unit ahead, whatever `ahead` is.",
            action="Use `ahead` where you look which unit must have computed.",
        ),
        Mistake(
            id="one-too-many",
            solution=one_too_many,
            told="Gathers run one unit too far ahead. With `ahead=0` unit 1 is gathered when unit 0 has computed, and "
            "not before.",
            action="Let gather i wait for unit i - ahead - 1.",
        ),
        Mistake(
            id="one-too-few",
            solution=one_too_few,
            told="Gathers start one unit too late: with `ahead=1`, unit 1 may be gathered while unit 0 computes.",
            action="Let gather i wait for unit i - ahead - 1, and not for unit i - ahead.",
        ),
        Mistake(
            id="computing-alone",
            solution=computing_alone,
            told="Gathers cost nothing in your schedule.",
            action="Let each unit wait for its gather.",
        ),
        Mistake(
            id="first-gather-free",
            solution=first_gather_free,
            told="The first gather takes no time. Nothing hides it: there is nothing yet to compute.",
            action="Let gather 0 begin at 0 and take `gather[0]`.",
        ),
        Mistake(
            id="only-the-first-gather",
            solution=only_the_first_gather,
            told="You take all gathers but the first to be hidden. A gather that takes longer than what is computed "
            "beside it shows.",
            action="Go through the units: each computes at the later of two times, its gather's end and the end of the "
            "unit before.",
        ),
        Mistake(
            id="gathers-ahead-at-first",
            solution=gathers_ahead_at_first,
            told="You gather all that may be ahead before anything computes. Unit 0 computes as soon as it is there, "
            "beside the other gathers; and later gathers can show as well.",
            action="Go through the units, and note when each is gathered and computed.",
        ),
        Mistake(
            id="gathers-side-by-side",
            solution=gathers_side_by_side,
            told="Several gathers run at once. They share one network: the next begins when the last has ended.",
            action="Keep the time at which the last gather ended, and start the next no earlier.",
        ),
        Mistake(
            id="computes-side-by-side",
            solution=computes_side_by_side,
            told="Several units compute at once. Unit i needs what unit i−1 gives.",
            action="Let unit i also wait for the end of unit i−1.",
        ),
        Mistake(
            id="only-what-shows",
            solution=only_what_shows,
            told="This is how long forward waits for gathers. Asked is how long it takes in all.",
            action="Return when the last unit has computed.",
        ),
        Mistake(
            id="last-not-computed",
            solution=last_not_computed,
            told="You stop when the last unit begins. It has to compute as well.",
            action="Add the time of the last computation.",
        ),
    ],
    hints=[
        "For each unit there are two moments: when it has been gathered, and when it has computed. What does each of "
        "them wait for?",
        "Gather i starts at the later of two moments: when gather i−1 ended, and when there is room. Computing i "
        "starts at the later of two: when gather i ended, and when computing i−1 did.",
        "Two lists with these moments, and `max` of two of them at a time.",
        "```python\nfor i in range(len(gather)):\n    room = ... if i > ahead else 0.0\n"
        "    gathered.append(max(..., room) + gather[i])\n    computed.append(max(...) + compute[i])\n```",
    ],
    explanation="Every piece of work starts when the last of what it waits for has ended: that is all there is to a "
    "schedule. Time is not a sum of communication and computation, and not the larger of the two either. What is left "
    "of communication is called *exposed*. The planner computes whole steps in this way.",
)
