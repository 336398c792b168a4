"""Prefetch: which units are gathered while one is in use."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ..checking.findings import Finding
from ..checking.observe import Trial
from ..data_parallel.data import ranks
from ..declare import Case, Exercise, Mistake
from . import stubs
from .data import Holder, Shapes, last_rank_comes_later
from .unit import Unit, free, gather, start_gather

Units = list[Unit]


def gather_ahead(units: list[Unit], number: int, depth: int) -> None:
    """Have the parameters of `units[number]`; those of the next `depth` units are on their way."""
    for unit in units[number : number + depth + 1]:
        if unit.flat is None:
            unit.finish = start_gather(unit)
    units[number].finish()


def start(units: Units) -> None:
    """Start those that have not been started, in this order."""
    for unit in units:
        if unit.flat is None:
            unit.finish = start_gather(unit)


def nothing_ahead(units: Units, number: int, depth: int) -> None:
    gather(units[number])


def all_at_once(units: Units, number: int, depth: int) -> None:
    start(units[number:])
    units[number].finish()


def one_too_few(units: Units, number: int, depth: int) -> None:
    start(units[number : number + max(depth, 1)])
    units[number].finish()


def one_too_many(units: Units, number: int, depth: int) -> None:
    start(units[number : number + depth + 2])
    units[number].finish()


def waits_for_all(units: Units, number: int, depth: int) -> None:
    for unit in units[number : number + depth + 1]:
        gather(unit)


def starts_after_waiting(units: Units, number: int, depth: int) -> None:
    gather(units[number])
    start(units[number + 1 : number + depth + 1])


def only_the_farthest(units: Units, number: int, depth: int) -> None:
    start([units[number], *units[number + depth : number + depth + 1]])
    units[number].finish()


def beyond_the_end(units: Units, number: int, depth: int) -> None:
    start([units[number + ahead] for ahead in range(depth + 1)])
    units[number].finish()


def round_and_round(units: Units, number: int, depth: int) -> None:
    start([units[(number + ahead) % len(units)] for ahead in range(depth + 1)])
    units[number].finish()


def starts_again(units: Units, number: int, depth: int) -> None:
    for unit in units[number : number + depth + 1]:
        unit.finish = start_gather(unit)
    units[number].finish()


def never_finishes(units: Units, number: int, depth: int) -> None:
    start(units[number : number + depth + 1])


def forgets_to_finish_later(units: Units, number: int, depth: int) -> None:
    if units[number].flat is None:
        gather(units[number])
    start(units[number + 1 : number + depth + 1])


def finish_is_lost(units: Units, number: int, depth: int) -> None:
    for unit in units[number : number + depth + 1]:
        if unit.flat is None:
            start_gather(unit)
    gather(units[number])


def farthest_first(units: Units, number: int, depth: int) -> None:
    start(units[number : number + depth + 1][::-1])
    units[number].finish()


def own_first(units: Units, number: int, depth: int) -> None:
    current = units[number]
    if current.flat is None:
        current.finish = start_gather(current)
    for ahead in range(number + 1, min(number + depth + 1, len(units))):
        if units[ahead].flat is None:
            units[ahead].finish = start_gather(units[ahead])
    gather(current)


def while_there_are_any(units: Units, number: int, depth: int) -> None:
    place = number
    while place < len(units) and place <= number + depth:
        if not isinstance(units[place].flat, torch.Tensor):
            units[place].finish = start_gather(units[place])
        place += 1
    units[number].finish()


def draw(rng: random.Random, number: int) -> Case:
    world_size = (2, 4, 3, 1)[number] if number < 4 else rng.randint(2, 4)
    count, depth, seed = rng.randint(4, 5), (1, 2, 0, 1, 3, 2)[number % 6], rng.getrandbits(32)
    shapes: list[Shapes] = [[(4 * rows, 2), (3,)] for rows in rng.sample(range(1, 10), count)]  # no two shards alike
    return Case(
        world_size=world_size,
        args=lambda rank: (shapes, depth, seed),
        about=f"{ranks(world_size)}, {count} units, depth {depth}",
    )


class Watched(Unit):
    """A unit that tells when it is started: `start_gather` gives it a `flat`."""

    def __init__(self, module: Holder, on_start: Callable[[], None]) -> None:
        self.on_start = on_start
        super().__init__(module)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "flat" and value is not None:
            self.on_start()
        super().__setattr__(name, value)


def units_by_step(
    solution: Callable[[Units, int, int], None], shapes: list[Shapes], depth: int, seed: int
) -> list[dict[str, Any]]:
    """For each unit in its turn: which units are gathered or on their way, and the parameters of this one.

    From the second turn on, the last rank comes when all others have returned. For what a rank needs then has been
    started in the turn before, by the last rank as well: unless there is nothing ahead.
    """
    seen, number, late = [], 0, False

    def on_start() -> None:
        nonlocal late
        late = late or any(param.numel() for param in units[number].params)  # they are there: it was waited for

    units: Units = [Watched(Holder(of_unit, torch.float32, seed), on_start) for of_unit in shapes]
    for number in range(len(units)):
        late, turn = False, partial(solution, units, number, depth)
        if number and depth:
            last_rank_comes_later(turn)
        else:
            turn()
        seen.append(
            {
                "units with a flat": [n for n, unit in enumerate(units) if unit.flat is not None],
                "its parameters": [param.detach().clone() for param in units[number].params],
                "when the gathers of this turn were started": f"{'after' if late else 'before'} the wait for this unit",
            }
        )
        free(units[number])
    return seen


def in_their_order(trial: Trial) -> Iterator[Finding]:
    """The all-gathers come in the order of the units, which the sizes of the shards tell."""
    expected, yours = (
        [[call.numels for call in calls if call.op == "all_gather_single"] for calls in seen.calls]
        for seen in (trial.expected, trial.yours)
    )
    wrong = [rank for rank in range(trial.world_size) if yours[rank] != expected[rank]]
    if wrong:
        order = [expected[wrong[0]].index(numels) for numels in yours[wrong[0]] if numels in expected[wrong[0]]]
        yield Finding(
            observed=f"{trial.who(wrong)} started the units in the order {', '.join(map(str, order))}.",
            likely="A gather that is started earlier is done earlier; so what is needed first should be started first.",
            action="Go through the units in the order of the list, and begin with this one.",
        )


GATHER_AHEAD = Exercise(
    name="zero3.gather_ahead",
    title="Gather ahead",
    task="The units are used in the order of the list, and it is the turn of `units[number]`. Start the all-gathers of "
    "this unit and of the next `depth`, in their order, as far as they have not been started (then `unit.flat` is "
    "None) and as there are units left. Only then finish this unit, and this one alone, so that its parameters are "
    "there. Call your `start_gather`, and keep what it returns as `unit.finish`.",
    stub=stubs.gather_ahead,
    reference=gather_ahead,
    draw=draw,
    trial=units_by_step,
    inputs_matter=False,
    rules=[in_their_order],
    variants={"own-first": own_first, "while-there-are-any": while_there_are_any},
    mistakes=[
        Mistake(
            id="nothing-ahead",
            solution=nothing_ahead,
            told="Only the unit itself is gathered, and everybody waits for it. Nothing is on its way meanwhile.",
            action="Start the next `depth` units as well, before you wait.",
        ),
        Mistake(
            id="all-at-once",
            solution=all_at_once,
            told="All units that are left are started at once. Then the whole model is on this rank, and that is what "
            "sharding was to avoid.",
            action="Start `depth` units beyond this one, and no more.",
        ),
        Mistake(
            id="one-too-few",
            solution=one_too_few,
            told="The slice ends one too early: this unit itself is the first in it, and `depth` more are to follow.",
            action="Count: with depth 1, two units have a `flat`.",
        ),
        Mistake(
            id="one-too-many",
            solution=one_too_many,
            told="One unit too many is on its way, and takes memory.",
            action="Count: with depth 1, two units have a `flat`.",
        ),
        Mistake(
            id="waits-for-all",
            solution=waits_for_all,
            told="You wait for the units ahead as well. Here that even lasts for ever: another rank has not started "
            "them yet, and need not have.",
            action="Finish `units[number]`, and leave the others on their way.",
        ),
        Mistake(
            id="starts-after-waiting",
            solution=starts_after_waiting,
            told="You wait for this unit first, and start the next ones afterwards. So while the rank waits, no other "
            "gather stands in line: when the bytes of this unit are there, the network has nothing to do.",
            action="Start all that is to be started; wait only then.",
        ),
        Mistake(
            id="only-the-farthest",
            solution=only_the_farthest,
            told="Of the units ahead only the last is started. In the first turn those between have not been started "
            "either.",
            action="Go through all of the next `depth` units, and start those that have no `flat`.",
        ),
        Mistake(
            id="beyond-the-end",
            solution=beyond_the_end,
            told="Near the end of the list there are fewer than `depth` units left.",
            action="A slice, `units[a:b]`, stops at the end by itself.",
        ),
        Mistake(
            id="farthest-first",
            solution=farthest_first,
            told="The farthest unit is started first, and the one that is needed now comes behind all others.",
            action="Begin with this unit.",
        ),
        Mistake(
            id="round-and-round",
            solution=round_and_round,
            told="After the last unit you begin with the first again, which nobody needs now.",
            action="Stop at the end of the list.",
        ),
        Mistake(
            id="starts-again",
            solution=starts_again,
            told="Units that are on their way already are started a second time, so all is sent twice.",
            action="Start a unit only where `unit.flat` is None.",
        ),
        Mistake(
            id="never-finishes",
            solution=never_finishes,
            told="Nobody waits for the unit whose turn it is, so its parameters are still empty.",
            action="Call its `finish()`.",
        ),
        Mistake(
            id="forgets-to-finish-later",
            solution=forgets_to_finish_later,
            told="A unit that was started in an earlier turn is never finished: its `flat` is there, and its "
            "parameters are empty.",
            action="Call `finish()` in any case, also where the unit had a `flat` already.",
        ),
        Mistake(
            id="finish-is-lost",
            solution=finish_is_lost,
            told="What `start_gather` returns is thrown away, and without it nobody can wait for the unit later.",
            action="Keep it: `unit.finish = start_gather(unit)`.",
        ),
    ],
    hints=[
        "In the first turn, how many units are to be started? And in the second?",
        "Start everything from this unit to the one `depth` beyond that has not been started; only then wait, for this "
        "one.",
        "The slice `units[number : number + depth + 1]`, `unit.flat is None`, `start_gather(unit)`, `unit.finish`.",
        "```python\nfor unit in units[...]:\n    if ...:\n        unit.finish = ...\nunits[number]....\n```",
    ],
    explanation="Everything is started before anything is waited for: so the next gather stands in line while this one "
    "travels, and goes on its way at once. In the first turn `depth + 1` units are started, and one in each turn after "
    "that, until there are none left. At any moment `depth + 1` units are in memory, so the depth is a price in bytes "
    "for time. For backward, give it the list in reverse order. Every rank must start the units in the same order, as "
    "with all collectives: so no rank may skip one that it happens not to need.",
)
