"""The check: compare a solution with the reference, on cases drawn from a seed.

Only results that were compared can pass. The reference runs on every case before the solution runs on any, so that the
solution cannot change the expected results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from ...world import RankError, World, put_off
from ..form.declaration import Case, Declaration, Solution
from .cases import draw, smallest
from .compare import broken_rules, differences
from .diagnose import known_mistake
from .findings import Finding, Status, Verdict
from .observe import Observation, Trial, observe, recall
from .plain import Opaque, leaves
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
                trials = _trials(exercise, solution, cases, expected, world)
                return _judge(verdict, solution, trials, tried, world, on_case)
        except KeyboardInterrupt:
            return replace(verdict, findings=(_stopped(len(tried), len(cases)),), cases_tried=len(tried))
        finally:
            late.clear()  # handled: the check has ended, and reports how far it got


def _trials(
    exercise: Declaration, solution: Solution, cases: list[Case], expected: list[Observation], world: World | None
) -> Iterator[Trial]:
    for case, what in zip(cases, expected, strict=True):
        yield Trial(exercise=exercise, case=case, expected=what, yours=observe(exercise, solution, case, world))


def _judge(
    verdict: Verdict,
    solution: Solution,
    trials: Iterator[Trial],
    tried: list[Trial],
    world: World | None,
    on_case: OnCase,
) -> Verdict:
    """Compare the trials, up to the first whose results differ, and append each to `tried`.

    A trial that only breaks a rule counts if no later one differs: wrong numbers are reported first.
    """
    on_case(0, verdict.case_count)
    failed: tuple[Trial, list[Finding]] | None = None
    for trial in trials:
        tried.append(trial)
        verdict = replace(verdict, cases_tried=len(tried))
        if found := differences(trial):
            failed = trial, found
            break
        if failed is None and (found := broken_rules(trial)):
            failed = trial, found
        on_case(len(tried), verdict.case_count)
    if failed is not None:
        return _explained(verdict, solution, *failed, tried, trials, world)
    return replace(verdict, status="passed", output=tried[0].yours.output)


def _failed(verdict: Verdict, trial: Trial, found: list[Finding]) -> Verdict:
    status: Status = "failed" if trial.yours.error is None else "error"
    output = trial.yours.output
    return replace(verdict, status=status, findings=tuple(found), case=trial.case.about, output=output)


def _explained(
    verdict: Verdict,
    solution: Solution,
    trial: Trial,
    found: list[Finding],
    tried: list[Trial],
    untried: Iterator[Trial],
    world: World | None,
) -> Verdict:
    """Return the verdict on the smallest case that fails, with the cause if it is a known mistake."""
    mistake = None
    if trial.yours.timed_out:
        return _failed(verdict, trial, found)
    with suppress(KeyboardInterrupt):  # report what is known so far
        if world is None:
            trial, found = smallest(trial, found, solution)
        mistake = known_mistake(trial.exercise, chain([trial], reversed(tried), untried), world)
    if mistake is not None:
        found = [replace(found[0], likely=mistake.sentence, action=mistake.action), *found[1:]]
        verdict = replace(verdict, mistake=mistake.id)
    return _failed(verdict, trial, found)


def _unfit(exercise: Declaration, case: Case, expected: Observation) -> Finding | None:
    """Return a finding if the reference itself failed, so that there is nothing to compare with."""
    if expected.error is not None:
        ran = isinstance(expected.error, RankError)  # if not, the error says why this machine cannot run the world
        error = str(expected.error).partition("\nNext: ")[0] if ran else expected.error
        busy = " when the machine is less busy" if expected.timed_out else ""
        return Finding(
            observed=f"the course's own solution failed here ({case.about}), so yours was not run: {error}",
            action=f"{'Run' if ran else 'Then run'} the cell again{busy}."
            f"{' If this comes back, restart the kernel.' * ran}",
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


def _stopped(tried: int, to_do: int) -> Finding:
    return Finding(
        observed=f"the check was stopped after {tried} of {to_do} cases, so nothing was decided.",
        action="Run the cell again to check all of them.",
    )
