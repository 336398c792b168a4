"""The check: compare a solution with the reference, on cases drawn from a seed.

Only results that were compared can pass. The reference runs on every case before the solution runs on any, so that the
solution cannot change the expected results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from ...errors import CourseError
from ...world import RankError, World, put_off
from ..form.declaration import Case, Declaration, Solution
from .compare import findings
from .diagnose import known_mistake
from .findings import Finding, Verdict
from .guard import Guard
from .observe import Observation, Trial, observe
from .plain import Opaque, leaves
from .recall import recall
from .unready import misfit, unattempted

OnCase = Callable[[int, int], object]
"""Called with the number of cases done and the number to do."""


def nobody_watches(done: int, to_do: int) -> None:
    """Ignore the progress of a check."""


def check(
    exercise: Declaration, solution: Any, world: World | None = None, *, seed: int = 0, on_case: OnCase = nobody_watches
) -> Verdict:
    """Check a solution; see `Exercise.check`."""
    verdict = Verdict(exercise=exercise.name, status="error", seed=seed)
    if unattempted(solution, exercise.stub):
        return replace(verdict, status="unattempted")
    problem = misfit(solution, exercise.stub)
    if problem is not None:
        return replace(verdict, findings=(problem,))
    cases = draw(exercise, seed, world)
    verdict = replace(verdict, case_count=len(cases))
    tried: list[Trial] = []
    with put_off() as late:  # a run checks this list for an earlier interrupt
        try:
            expected: list[Observation] = []
            for case in cases:
                expected.append(recall(exercise, exercise.reference, case, world))
                problem = _unfit(exercise, case, expected[-1])
                if problem is not None:
                    return replace(verdict, findings=(problem,))
            with _bound_to_its_name(solution):
                return _judge(verdict, _trials(exercise, solution, cases, expected, world), tried, world, on_case)
        except KeyboardInterrupt:
            return replace(verdict, findings=(_stopped(len(tried), len(cases)),), cases_tried=len(tried))
        finally:
            late.clear()  # handled: the check has ended, and reports how far it got


def draw(exercise: Declaration, seed: int, world: World | None = None) -> list[Case]:
    """Return the cases of a check; with a world, those that fit its size.

    Raises:
        CourseError: no case fits.
    """
    numbers = range(exercise.case_count if world is None else 20 * exercise.case_count)
    cases = [
        replace(exercise.draw(random.Random(f"{exercise.name} {seed} {number}"), number), drawn=(seed, number))
        for number in numbers
    ]
    if world is not None:
        cases = [case for case in cases if case.world_size in (0, world.world_size)][: exercise.case_count]
    if not cases:
        sizes = sorted({exercise.draw(random.Random(number), number).world_size for number in numbers})
        raise CourseError(
            f"{exercise.name}: its cases have {', '.join(map(str, sizes))} ranks, and {world} has another number. "
            "Give a world of one of these sizes, or none."
        )
    return cases


def _trials(
    exercise: Declaration, solution: Solution, cases: list[Case], expected: list[Observation], world: World | None
) -> Iterator[Trial]:
    for case, what in zip(cases, expected, strict=True):
        yield Trial(exercise=exercise, case=case, expected=what, yours=observe(exercise, solution, case, world))


def _judge(
    verdict: Verdict, trials: Iterator[Trial], tried: list[Trial], world: World | None, on_case: OnCase
) -> Verdict:
    """Compare the trials, up to the first that fails, and append each to `tried`."""
    guard = Guard()
    on_case(0, verdict.case_count)
    for trial in trials:
        tried.append(trial)
        replaced = guard.restore()
        found = [_tampering(replaced)] if replaced else findings(trial)
        if found:
            return _rejected(verdict, tried, trials, found, world, diagnose=not replaced)
        on_case(len(tried), verdict.case_count)
    return replace(verdict, status="passed", cases_tried=len(tried), output=tried[0].yours.output)


def _rejected(
    verdict: Verdict,
    tried: list[Trial],
    untried: Iterator[Trial],
    found: list[Finding],
    world: World | None,
    *,
    diagnose: bool,
) -> Verdict:
    failed, error = tried[-1], tried[-1].yours.error
    verdict = replace(
        verdict,
        status="failed" if error is None else "error",
        findings=tuple(found),
        cases_tried=len(tried),
        case=failed.case.about,
        output=failed.yours.output,
    )
    endless = isinstance(error, RankError) and error.kind == "timeout"
    if endless or not diagnose:
        return verdict
    return _diagnosed(verdict, failed.exercise, chain([failed], tried[:-1], untried), world)


def _diagnosed(verdict: Verdict, exercise: Declaration, trials: Iterator[Trial], world: World | None) -> Verdict:
    """Return the verdict with the known mistake's cause, instead of the cause that its first finding guesses."""
    mistake = None
    with suppress(KeyboardInterrupt):  # report what is known so far
        mistake = known_mistake(exercise, trials, world)
    if mistake is None:
        return verdict
    first, *others = verdict.findings
    diagnosed = replace(first, likely=mistake.sentence, action=mistake.action)
    return replace(verdict, mistake=mistake.id, findings=(diagnosed, *others))


def _unfit(exercise: Declaration, case: Case, expected: Observation) -> Finding | None:
    """Return a finding if the reference itself failed, so that there is nothing to compare with."""
    if expected.error is not None:
        return Finding(
            observed=f"the course's own solution did not end well here ({case.about}), so yours was not run: "
            f"{expected.error}",
            action="Run the cell again. If this comes back, restart the kernel.",
        )
    opaque = [leaf for value in expected.values for leaf in leaves(value) if isinstance(leaf, Opaque)]
    assert not opaque, f"{exercise.name}: the reference gives {opaque[0]}, which no check can compare"
    return None


@contextmanager
def _bound_to_its_name(solution: Solution) -> Iterator[None]:
    """Bind the solution to its name during the check, so that a recursive function calls itself.

    Its name may still belong to the reference, from an earlier run of the cell: then the reference would be checked.
    """
    name, variables = getattr(solution, "__name__", ""), getattr(solution, "__globals__", {})
    bound = getattr(solution, "__qualname__", "") == name and name in variables
    before = variables[name] if bound else None
    if bound:
        variables[name] = solution
    try:
        yield
    finally:
        if bound:
            variables[name] = before


def _tampering(names: list[str]) -> Finding:
    return Finding(
        observed=f"your function replaced {', '.join(names)}, which the check relies on. It was put back.",
        action="Call these functions, and leave them as they are.",
    )


def _stopped(tried: int, to_do: int) -> Finding:
    return Finding(
        observed=f"the check was stopped after {tried} of {to_do} cases, so nothing was decided.",
        action="Run the cell again to check all of them.",
    )
