"""Overlap: the forward pass of stage 3 as a schedule."""

import random

from ...exercises import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    units, ahead = (3, 5, 6, 4, 7, 6)[number % 6], (1, 0, 2, 5, 1, 2)[number % 6]
    gather, compute = ([rng.randint(10, 99) / 10 for _ in range(units)] for _ in range(2))
    if number == 0:
        gather, compute = [2.1, 1.9, 4.3], [3.2, 2.9, 3.1]
    elif number < 3:  # first computing is slow, then gathering is: the result depends on each unit of memory
        gather, compute = [1.3, 2.1, 1.1, 3.7, 7.1, 8.3][-units:], [9.7, 6.1, 5.3, 2.3, 1.9, 3.1][:units]
    what = f"gather {gather}, compute {compute}, {ahead} ahead"
    return Case(world_size=0, args=lambda rank: (list(gather), list(compute), ahead), what=what)


exercise = Exercise("costs.overlap", title="A schedule, not a sum", draw=draw, task="""
    Return the time at which the last unit has computed. Gathers run one at a time, in order. Computations run one at a
    time, in order, while gathers run. Unit i computes when it is gathered and unit i−1 has computed. The gather of unit
    i begins when two things have happened: the gather before it has ended, and unit `i - ahead - 1` has computed (if
    there is such a unit), because memory is limited.""", hints="""
    For each unit there are two times: when it is gathered, and when it has computed. What does each of them wait for?

    Gather i starts at the later of two times: when gather i−1 has ended, and when there is room in memory. Computation
    i starts at the later of two times: when gather i has ended, and when computation i−1 has.

    Keep the times in two lists, and take the `max` of two of them at a time.

    ```python
    for i in range(len(gather)):
        room = ... if i > ahead else 0.0
        gathered.append(max(..., room) + gather[i])
        computed.append(max(...) + compute[i])
    ```
    """, explanation="""
    Each piece of work starts when everything that it waits for has ended; that is a schedule. The time is not the sum
    of communication and computation, and it is not the larger of the two. Communication during which nothing computes
    is called *exposed*. The planner computes whole steps in this way.""")


@exercise
def forward_seconds(gather: list[float], compute: list[float], ahead: int) -> float:
    """Return how long the forward of stage 3 takes. Unit i is gathered in gather[i], computed in compute[i].

    One gather runs at a time, and one unit computes at a time, both in the order of the units.
    Unit i computes once it is gathered. Its own gather begins when unit i - ahead - 1 has computed.
    """
    gathered, computed = [0.0], [0.0]  # when each unit is: unit i at place i + 1, and the start at place 0
    for i in range(len(compute)):
        room = computed[max(i - ahead, 0)]
        gathered.append(max(gathered[-1], room) + gather[i])
        computed.append(max(gathered[-1], computed[-1]) + compute[i])
    return computed[-1]


exercise.edit("one-after-the-other", {"max(gathered[-1], room)": "computed[-1]"}, """
    Nothing overlaps in your schedule: your result is the sum of all times, which is right for `ahead=0` only.
    Next: keep two clocks, one for gathers and one for computations.""")

exercise.edit("longer-of-the-sums", {"return computed[-1]": "return max(sum(gather), sum(compute))"}, """
    You take the longer of the two sums, as if everything could overlap. The first unit cannot compute before it is
    gathered, and no gather is left while the last unit computes.
    Next: go through the units, and note when each is gathered and when it has computed.""")

exercise.edit("longer-of-each", {"return computed[-1]": "return sum(map(max, gather, compute))"}, """
    In your schedule, a unit computes while it is itself being gathered. It can compute only when its gather has ended;
    meanwhile a *later* unit can be gathered. Next: let unit i compute after its own gather has ended.""")

@exercise.mistake
def in_lockstep(gather: list[float], compute: list[float], ahead: int) -> float:
    """In your schedule, gather i+1 and computation i begin together, and the slower one ends the step for both. The
    next gather can begin as soon as the network is free and there is room in memory.
    Next: keep two clocks, one for gathers and one for computations."""
    if ahead == 0:
        return sum(gather) + sum(compute)
    return gather[0] + sum(map(max, gather[1:], compute)) + compute[-1]


exercise.edit("all-of-memory", {"computed[max(i - ahead, 0)]": "0.0"}, """
    Your gathers run ahead without a limit. Memory has room for `ahead` gathered units besides the one that computes,
    so the next gather has to wait. Next: let gather i wait until unit i - ahead - 1 has computed.""")

exercise.edit("one-too-many", {"i - ahead": "i - ahead - 1"}, """
    Your gathers begin one unit too early. With `ahead=0`, the gather of unit 1 begins when unit 0 has computed.
    Next: let gather i begin, and not only end, after unit i - ahead - 1 has computed.""")

exercise.edit("one-too-few", {"i - ahead": "i - max(ahead - 1, 0)"}, """
    Your gathers start one unit too late. With `ahead=1`, unit 1 can be gathered while unit 0 computes.
    Next: let gather i wait for unit i - ahead - 1, not for unit i - ahead.""")

TOO_LATE = """
    Your gather i waits until unit i - ahead has computed, which is one unit too late. With `ahead=0` that is unit i
    itself, which cannot compute before it is gathered. Next: let gather i wait for unit i - ahead - 1."""

exercise.edit("waits-for-itself", {"i - ahead": "i - ahead + 1"}, TOO_LATE)

exercise.edit("waits-for-itself-later", {
    "computed[max(i - ahead, 0)]": "computed[i - ahead + 1] if i > ahead else 0.0"}, TOO_LATE)

exercise.edit("gathers-side-by-side", {"max(gathered[-1], room)": "room"}, """
    Several gathers run at the same time in your schedule. They share one network, so the next one begins when the one
    before it has ended. Next: keep the time at which the last gather ended, and start the next one no earlier.""")

exercise.edit("only-gathered", {"return computed[-1]": "return gathered[-1]"}, """
    You return the time at which the last unit is gathered. It still has to compute. Next: return when the last unit
    has computed.""")

exercise.edit("computes-side-by-side", {"max(gathered[-1], computed[-1])": "gathered[-1]",
    "return computed[-1]": "return max(computed)"}, """
    Several units compute at the same time in your schedule. Unit i needs the output of unit i−1.
    Next: let unit i also wait until unit i−1 has computed.""")


@exercise.variant
def recursion(gather: list[float], compute: list[float], ahead: int) -> float:
    def gathered(unit: int) -> float:
        return max(gathered(unit - 1), computed(unit - ahead - 1)) + gather[unit] if unit >= 0 else 0.0

    def computed(unit: int) -> float:
        return max(gathered(unit), computed(unit - 1)) + compute[unit] if unit >= 0 else 0.0

    return computed(len(gather) - 1)


@exercise.variant
def clocks(gather: list[float], compute: list[float], ahead: int) -> float:
    network = device = 0.0
    ends: list[float] = []
    for number, (fetch, work) in enumerate(zip(gather, compute, strict=True)):
        if number > ahead:
            network = max(network, ends[number - ahead - 1])
        network += fetch
        device = max(device, network) + work
        ends.append(device)
    return device
