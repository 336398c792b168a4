"""An exercise, and its check: compare a solution with the reference, on cases drawn from a seed.

Only results that were compared can pass. The reference runs on every case before the solution runs on any, so that the
solution cannot change the expected results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ...meter import Replay
from ...world import World, put_off
from ..form.declaration import Case, Declaration, Mistake, Solution
from .cases import Runs, draw, redraw, smallest
from .compare import broken_rules, differences, findings
from .diagnose import SECONDS, contradicted, diagnose
from .failures import misfit, unattempted
from .findings import Cost, Finding, Verdict
from .observe import Observation, Trial, film
from .plain import Opaque, leaves
from .rules import sent_bytes

OnCase = Callable[[int, int], object]
"""Called with the number of cases done and the number to do."""

NOISE_SECONDS = 0.05
"""On a busy machine, the CPU time of equal solutions differs by less than this in a case."""


@dataclass(kw_only=True, eq=False)
class Exercise(Declaration):
    """A function that the learner writes. `Declaration` says what a lesson's file fills in."""

    def check(
        self, solution: Any, world: World | None = None, *, seed: int = 0, on_case: OnCase = lambda done, to_do: None
    ) -> Verdict:
        """Try `solution` on cases drawn from `seed`, and report what is wrong with the first that fails.

        Args:
            solution: the learner's function. It and everything that it uses are copied, and stay unchanged.
            world: where to run, instead of on simulated ranks; then only cases of its size are tried.
            seed: the same seed draws the same cases.
            on_case: called with the number of cases done and the number to do: with 0 before anything runs, and not at
                all if `solution` is the unchanged stub.
        """
        verdict = Verdict(exercise=self.name, status="error", seed=seed)
        if unattempted(solution, self.stub):
            return replace(verdict, status="unattempted")
        cases = draw(self, seed, world)
        on_case(0, len(cases))
        problem = misfit(solution, self.stub)
        if problem is not None:
            return replace(verdict, findings=(problem,))
        with put_off() as late:  # a run checks this list for an earlier interrupt
            try:
                runs = Runs(self, solution, world)
                return _compared(replace(verdict, case_count=len(cases)), runs, cases, on_case)
            finally:
                late.clear()  # handled: the check has ended, and reports how far it got

    def replays(self, solution: Solution, verdict: Verdict) -> dict[str, Replay]:
        """Return the replays of the case that failed, by a title: the solution's, and the reference's."""
        case = redraw(self, *verdict.drawn)
        return {"Yours": film(self, solution, case), "The reference's": film(self, self.reference, case).without_code()}


def _compared(verdict: Verdict, runs: Runs, cases: list[Case], on_case: OnCase) -> Verdict:
    """Run the solution on one case after the other, up to the first whose results differ.

    A trial that only breaks a rule counts if no later one differs: wrong numbers are reported first.
    """
    failed: tuple[Trial, list[Finding]] | None = None
    try:
        problem = _unfit(runs, cases)
        if problem is not None:
            return replace(verdict, findings=(problem,))
        for number, case in enumerate(cases, 1):
            trial = runs.trial(case)
            verdict = replace(verdict, cases_tried=number)
            on_case(number, len(cases))  # also for a wrong case, whose cause takes longer to find
            found = differences(trial)
            if found:
                failed = trial, found
                break
            if failed is None and (found := broken_rules(trial)):
                failed = trial, found
    except KeyboardInterrupt:
        return replace(verdict, findings=(_stopped(verdict),))
    if failed is None:
        yours, expected = _costs([runs.trial(case) for case in cases])
        output = runs.trial(cases[0]).yours.output
        return replace(verdict, status="passed", output=output, cost=yours, reference_cost=expected)
    return _explained(verdict, *failed, runs, cases)


def _costs(trials: list[Trial]) -> tuple[Cost, Cost]:
    """Return what the solution and the reference take. The time is the median's: the first case also loads modules."""
    seconds = median(_times(trial.yours.cpu_seconds, trial.expected.cpu_seconds) for trial in trials)
    return _cost([trial.yours for trial in trials], seconds), _cost([trial.expected for trial in trials])


def _times(seconds: float, reference: float) -> float:
    """Return `seconds` as a multiple of the reference's; 1 if the difference may be what else the machine did."""
    return 1.0 if abs(seconds - reference) < NOISE_SECONDS else seconds / max(reference, 1e-4)


def _cost(observations: list[Observation], seconds: float = 1.0) -> Cost:
    return Cost(
        calls=sum(len(calls) for one in observations for calls in one.calls),
        sent_bytes=sum(sum(sent_bytes(one).values()) for one in observations),
        seconds=seconds,
    )


def _explained(verdict: Verdict, trial: Trial, found: list[Finding], runs: Runs, cases: list[Case]) -> Verdict:
    """Return the verdict on the smallest case that fails, with the cause if known mistakes explain it."""
    mistake = None
    if not trial.yours.timed_out:
        with suppress(KeyboardInterrupt):  # report what is known so far
            if runs.world is None:
                trial, found = smallest(trial, found, runs.trial)
            mistake = diagnose(runs, [trial.case, *cases])
            wrong = trial.yours.error is None and not trial.yours.warnings and differences(trial)
            if mistake is None and wrong and not found[0].likely:
                found = [_beside_right_cases(found[0], runs, cases), *found[1:]]
    sure = mistake in trial.exercise.mistakes  # and not two of them at once
    if mistake is not None:
        alike = sure and contradicted(mistake, runs.solution, runs.exercise.reference)
        sure = sure and not alike
        known = _same_result(found[0], mistake) if alike else _caused(found[0], mistake, sure)
        found = [known, *found[1:]]
    return replace(
        verdict,
        status="failed" if trial.yours.error is None else "error",
        findings=tuple(found),
        mistake=mistake.id if mistake is not None and sure else None,
        case=trial.case.about,
        ranks=trial.case.world_size,
        drawn=trial.case.drawn,
        output=trial.yours.output,
    )


def _caused(finding: Finding, mistake: Mistake, sure: bool) -> Finding:
    likely, perhaps = (mistake.sentence, "") if sure else ("", mistake.sentence)
    return replace(finding, likely=likely, perhaps=perhaps, action=mistake.action, technical=False)


def _same_result(finding: Finding, mistake: Mistake) -> Finding:
    """Return `finding` with a mistake that is not in the solution's source, and has the same result."""
    perhaps = f"This mistake has the same result, though your code is written differently: {mistake.sentence}"
    if finding.traceback or finding.technical:
        return finding  # the line that failed is named, which is nearer
    return replace(finding, likely="", perhaps=perhaps, action="Find what has the same effect in your code.")


def _beside_right_cases(finding: Finding, runs: Runs, cases: list[Case]) -> Finding:
    """Return `finding` with some cases that are right: what is different in them leads to the cause."""
    end, right = time.process_time() + SECONDS, list[str]()
    for case in cases:
        if len(right) == 2 or time.process_time() > end:
            break
        if case.about not in right and not findings(runs.trial(case)):
            right.append(case.about)
    more = f" Right with {' and with '.join(right)}." if right else ""
    return replace(finding, observed=finding.observed + more)


def _unfit(runs: Runs, cases: list[Case]) -> Finding | None:
    """Run the reference on each case. Return a finding if it failed, so that there is nothing to compare with."""
    for case in cases:
        expected = runs.recall(runs.exercise.reference, case)
        if expected.error is not None:
            return _failed_here(case, expected)
        opaque = [leaf for value in expected.values for leaf in leaves(value) if isinstance(leaf, Opaque)]
        assert not opaque, f"{runs.exercise.name}: the reference gives {opaque[0]}, which no check can compare"
    return None


def _failed_here(case: Case, expected: Observation) -> Finding:
    error = str(expected.error).partition("\nNext: ")[0]
    return Finding(
        observed=f"the course's own solution failed here ({case.about}), so yours was not run: {error}",
        action="Run the cell again. If this comes back, restart the kernel.",
        technical=True,
    )


def _stopped(verdict: Verdict) -> Finding:
    return Finding(
        observed=f"the check was stopped after {verdict.cases_tried} of {verdict.case_count} cases, so nothing was "
        "decided.",
        action="If it stood still, look for a loop that does not end. Then run the cell again to check all of them.",
        technical=True,
    )
