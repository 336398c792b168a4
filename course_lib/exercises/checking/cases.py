"""The cases of a check: those that a solution must pass, and the small ones that show a learner where it fails."""

from __future__ import annotations

import random
from dataclasses import replace

from ...errors import CourseError
from ...world import World
from ..form.declaration import Case, Declaration
from .compare import differences, findings
from .findings import Finding
from .observe import RunCase, Trial


class SmallNumbers(random.Random):
    """A random stream in which small whole numbers are likely. Numbers of 32 bits, such as seeds, stay as they are."""

    def getrandbits(self, k: int, /) -> int:
        bits = super().getrandbits
        return min(bits(k) for _ in range(16 if k < 32 else 1))


def draw(
    exercise: Declaration, seed: int, world: World | None = None, *, stream: type[random.Random] = random.Random
) -> list[Case]:
    """Return the cases of a check; with a world, those that fit its size.

    Raises:
        CourseError: no case fits.
    """
    numbers = range(exercise.case_count if world is None else 20 * exercise.case_count)
    cases = [redraw(exercise, seed, number, stream) for number in numbers]
    if world is not None:
        cases = [case for case in cases if case.world_size in (0, world.world_size)][: exercise.case_count]
    if not cases:
        sizes = sorted({exercise.draw(random.Random(number), number).world_size for number in numbers})
        raise CourseError(
            f"{exercise.name}: its cases have {', '.join(map(str, sizes))} ranks, and {world} has another number. "
            "Give a world of one of these sizes, or none."
        )
    return cases


def redraw(exercise: Declaration, seed: int, number: int, stream: type[random.Random]) -> Case:
    """Return a case by what is stored in its `drawn`."""
    return replace(exercise.draw(stream(f"{exercise.name} {seed} {number}"), number), drawn=(seed, number, stream))


def smallest(failed: Trial, found: list[Finding], run: RunCase) -> tuple[Trial, list[Finding]]:
    """Return a trial with the fewest ranks, and few elements, that fails in the same way, and its findings.

    Where its numbers are right, such as on one rank, a solution may break a rule. That is another failure.

    If no smaller case fails, these are `failed` and its findings, `found`.
    """
    most_ranks = failed.case.world_size
    compared = differences if differences(failed) else findings
    cases = draw(failed.exercise, failed.case.drawn[0], stream=SmallNumbers)
    for case in sorted(cases, key=lambda case: case.world_size):
        if case.world_size > most_ranks:
            break
        trial = run(case)
        if trial.expected.error is None and (here := compared(trial)):
            return trial, here
    return failed, found
