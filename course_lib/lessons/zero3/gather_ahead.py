"""Prefetch: which units are gathered while one is in use."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ...exercises import Case, Exercise, Finding, Trial
from ..data_parallel.data import last_rank_comes_later
from .data import Holder, Shapes, draw_world_size
from .start_gather import gather, start_gather
from .unit import Unit, free


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    count, depth, seed = rng.randint(4, 5), (1, 2, 0, 1, 3, 2)[number % 6], rng.getrandbits(32)
    shapes: list[Shapes] = [[(4 * rows, 2), (3,)] for rows in rng.sample(range(1, 10), count)]  # shards all differ
    return Case(world_size=world_size, args=lambda rank: (shapes, depth, seed), what=f"{count} units, depth {depth}")


def units_by_step(
    solution: Callable[[list[Unit], int, int], None], shapes: list[Shapes], depth: int, seed: int
) -> list[dict[str, Any]]:
    """Return, for each unit in its turn, which units are gathered or on their way, and this unit's parameters.

    From the second turn on, the last rank comes when all others have returned. The others do not have to wait for it,
    because its share of the gather that they finish was started one turn earlier, unless nothing is started ahead.
    """
    seen, units = [], [Unit(Holder(of_unit, torch.float32, seed)) for of_unit in shapes]
    for number in range(len(units)):
        turn = partial(solution, units, number, depth)
        if number and depth:
            last_rank_comes_later(turn)
        else:
            turn()
        if number == 1:  # in backward, a unit's turn can come when the unit is whole already
            turn()
        seen.append(
            {
                "units with a flat": [n for n, unit in enumerate(units) if unit.flat is not None],
                "its parameters": [param.detach().clone() for param in units[number].params],
            }
        )
        free(units[number])
    return seen


def in_their_order(trial: Trial) -> Iterator[Finding]:
    """Require the all-gathers in the order of the units, which the sizes of the shards show."""
    expected, yours = (
        [[call.numels for call in calls if call.op == "all_gather"] for calls in seen.calls]
        for seen in (trial.expected, trial.yours)
    )
    wrong = [rank for rank in range(trial.world_size) if yours[rank] != expected[rank]]
    if wrong:
        order = [expected[wrong[0]].index(numels) for numels in yours[wrong[0]] if numels in expected[wrong[0]]]
        observed = f"{trial.who(wrong)} started the units in the order {', '.join(map(str, order))}."
        if len(set(order)) < len(order):
            yield Finding(
                observed=observed,
                likely="A unit that was started and not freed was started again. Its turn can come twice.",
                action="Start a unit only if its `unit.flat` is None.",
            )
            return
        yield Finding(
            observed=observed,
            likely="All-gathers run in the order in which they start, so the unit that is needed first comes first.",
            action="Go through the units in the order of the list, and begin with this one.",
        )


def before_the_wait(trial: Trial) -> Iterator[Finding]:
    """Require that the gathers of a turn start before the rank waits for the turn's unit.

    A rank whose peers have already come does not wait. Of several ranks, at least the first waits for the first unit.
    """
    depth = trial.case.args(0)[1]
    for expected, yours in zip(trial.expected.calls, trial.yours.calls, strict=True):
        made = {call.numels: call for call in yours}
        units = [made[call.numels] for call in expected if call.op == "all_gather" and call.numels in made]
        pairs = [(unit, ahead) for n, unit in enumerate(units) for ahead in units[n + 1 : n + depth + 1]]
        if trial.world_size > 1 and any(ahead.issued > unit.waited_from for unit, ahead in pairs):
            yield Finding(
                observed="a rank waited for its unit, and only then started the gathers of the units ahead.",
                action="Start all gathers of this turn, then wait.",
            )
            return


exercise = Exercise("zero3.gather_ahead", title="Gather ahead", draw=draw, trial=units_by_step, inputs_matter=False,
    asynchronous=True, rules=[in_their_order, before_the_wait], task="""
    The units are used in the order of the list, and it is the turn of `units[number]`. Start the all-gathers of this
    unit and of the next `depth` units, in their order. Start only those that have not been started (their `unit.flat`
    is None), and stop at the end of the list. Then finish this unit, and no other unit, so that its parameters are
    present. Call your `start_gather`, and store the function that it returns as `unit.finish`.""", hints="""
    With depth 1, how many units do you start in the first turn, and how many in the second?

    Start all units from this one to the one `depth` beyond it that have not been started. Only then wait, and only for
    this unit.

    The slice `units[number : number + depth + 1]`, `unit.flat is None`, `start_gather(unit)`, `unit.finish`.

    ```python
    for unit in units[...]:
        if ...:
            unit.finish = ...
    units[number]....
    ```
    """, explanation="""
    Everything is started before the rank waits for anything. So the next gather can begin as soon as this one has
    ended. In the first turn, `depth + 1` units are started, then one in each turn until none are left. At any moment at
    most `depth + 1` units are in memory: depth costs bytes and saves time. For backward, pass the list in reverse
    order. As with all collectives, every rank must start the units in the same order. So a rank must not skip a unit
    that it does not need.""")


@exercise
def gather_ahead(units: list[Unit], number: int, depth: int) -> None:
    """Start to gather `units[number]` and the next `depth` units; wait only for `units[number]`.

    Do not start a unit twice. A unit that was started and not freed has a `flat`.
    """
    for unit in units[number : number + depth + 1]:
        if unit.flat is None:
            unit.finish = start_gather(unit)
    units[number].finish()


exercise.edit("nothing-ahead", {"+ depth + 1": "+ 1"}, """
    You gather only the unit itself and wait for it. No other gather runs while it is used.
    Next: start the next `depth` units too, before you wait.""")

exercise.edit("all-at-once", {"number : number + depth + 1": "number:"}, """
    You start all remaining units at once. Then this rank holds the whole model, which sharding should avoid.
    Next: start `depth` units beyond this one, and no more.""")

exercise.edit("one-too-few", {"depth + 1": "depth"}, """
    You start one unit too few. This unit is the first of the slice, and `depth` units follow it.
    Next: count: with depth 1, two units have a `flat`.""")

exercise.edit("waits-for-all", {"units[number].finish()": "    unit.finish()"}, """
    You wait for the units ahead too. In this check the wait never ends: a different rank has not started them yet, and
    does not have to. Next: finish only the unit whose turn it is.""")

exercise.edit("starts-after-waiting", {"for unit": "gather(units[number])\nfor unit",
    "\nunits[number].finish()": ""}, """
    You wait for this unit before you start the next units. So when the bytes of this unit have arrived, the network has
    nothing to do until you start the next gather. Next: start all units first, then wait.""")

exercise.edit("beyond-the-end", {"for unit in units[number : number + depth + 1]:":
    "for ahead in range(depth + 1):\n    unit = units[number + ahead]"}, """
    Near the end of the list, fewer than `depth` units are left, and your index goes beyond the last.
    Next: use a slice; it stops at the end of the list.""")

exercise.edit("starts-again", {"if unit.flat is None:\nunit.finish": "unit.finish"}, """
    You start units that are on their way already a second time, so their bytes are sent twice.
    Next: start a unit only if its `unit.flat` is None.""")

exercise.edit("never-finishes", {"\nunits[number].finish()": ""}, """
    You never wait for `units[number]`, so its parameters are still empty. Next: call its `finish()`.""")

exercise.edit("one-too-few-before-its-own", {"depth + 1": "depth", "units[number].finish()": "gather(units[number])"},
    """
    You start one unit too few: the slice contains this unit, and `depth` units should follow it.
    Next: count: with depth 1, two units have a `flat`.""")

exercise.edit("next-only", {"number + depth + 1": "number + 2"}, """
    You start this unit and the next, whatever `depth` is. Next: how many units should have a `flat` with depth 3?""")

exercise.edit("wraps-around", {"for unit in units[number : number + depth + 1]:":
    "for ahead in range(depth + 1):\n    unit = units[(number + ahead) % len(units)]"}, """
    At the end of the list you go on with its beginning. Nothing comes after the last unit, so the units that you start
    there stay whole for nothing. Next: what should happen with the last unit, if `depth` is 1?""")


@exercise.variant
def own_first(units: list[Unit], number: int, depth: int) -> None:
    current = units[number]
    if current.flat is None:
        current.finish = start_gather(current)
    for ahead in range(number + 1, min(number + depth + 1, len(units))):
        if units[ahead].flat is None:
            units[ahead].finish = start_gather(units[ahead])
    gather(current)


exercise.variant_edit("gathers-it", {"units[number].finish()": "gather(units[number])"})
