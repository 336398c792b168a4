"""Find the known mistake behind a wrong solution, by running both.

Known mistakes are runnable. The one that behaves like the solution on the failed case and on every other case of the
check is the diagnosis: the same results, or the same failure. If results are right, it must break the same rules. If
they are wrong, broken rules only decide between several mistakes, because the time for which pending work holds memory
varies.

If no mistake behaves the same, two of them at once may: mistakes are edits, so one can be made on top of another. Pairs
are many, and a guess, so a pair must break the same rules. A repair begins with more faults than two: there, the guess
is a fault whose text is still in the source and that, alone, makes the first wrong part of the results wrong.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import keyword
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

from ...errors import CourseError
from ...world import RankError, RankReport
from ..form.declaration import Case, Mistake, Solution
from .cases import Runs
from .observe import Observation, Trial
from .plain import same

SECONDS = 0.4
"""CPU time for pairs of mistakes, which are many. What ran before stays known, so the next check goes further."""


def diagnose(runs: Runs, cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake behind a wrong solution, a guess if no single one is, or None if none is found in time.

    Args:
        runs: of the check. Mistakes with a source similar to the solution's run first, and the solution runs on the
            next case only while a mistake behaves like it.
        cases: those of the check, after the one that failed.
    """
    exercise, solution, first = runs.exercise, runs.solution, runs.trial(cases[0])
    if one := _nearest(_by_source(exercise.mistakes, solution, exercise.reference), inf, runs, cases):
        return one
    if first.yours.warnings or first.yours.error is not None:  # values are not compared then: any second mistake fits
        return None
    if fault := _first_fault(runs, cases[0]):
        return replace(fault)  # a guess is none of `exercise.mistakes`
    pairs = _by_source(exercise.pairs, solution, exercise.reference)
    end = time.process_time() + SECONDS
    return _nearest(pairs, end, runs, cases, same_rules=True)


def _first_fault(runs: Runs, case: Case) -> Mistake | None:
    """Return a fault of a repair that is left in the source, and makes the first wrong part of the results wrong."""
    exercise, trial = runs.exercise, runs.trial(case)
    part, yours = _first_wrong(trial, trial.yours), _nameless(_words(runs.solution), runs.solution)
    found: list[Mistake] = []
    if part is None or len(exercise.faults) < 3:  # two are a pair
        return None
    for fault in exercise.faults:
        left, mended = (
            all(_contains(yours, text, exercise.reference) for text in texts if text)
            for texts in (fault.edits.values(), fault.edits)
        )
        made = runs.recall(fault.solution, case)
        if left and not mended and _first_wrong(trial, made) == part:
            if all(same(a[part], b.get(part), exercise.tolerance) for a, b in _by_rank(made, trial.yours)):
                return fault
            found.append(fault)
    return found[0] if len(found) > 1 else None  # several in one part change each other's numbers


def _first_wrong(trial: Trial, given: Observation) -> str | None:
    """Return the name of the first part of the results that is wrong on any rank; None if parts have no names."""
    by_rank = _by_rank(trial.expected, given)
    if not all(isinstance(one, dict) for both in by_rank for one in both):
        return None
    wrong = (
        name
        for name in (by_rank[0][0] if by_rank else ())
        if not all(same(a[name], b.get(name), trial.exercise.tolerance) for a, b in by_rank)
    )
    return next(wrong, None)


def _by_rank(one: Observation, other: Observation) -> list[tuple[Any, Any]]:
    return [*zip(one.values, other.values, strict=False)]  # of a run that failed, there are none


def contradicted(mistake: Mistake, solution: Solution, reference: Solution) -> bool:
    """Return whether the solution's source contains the reference's text wherever the mistake changes it.

    Then the solution behaves like the mistake for a different reason. All names of variables count as the same name.
    """
    return _contradicted(mistake, _nameless(_words(solution), solution), reference)


def _contradicted(mistake: Mistake, yours: str, reference: Solution) -> bool:
    made = _nameless(_words_of_ours(mistake.solution), mistake.solution)
    changed = [old for old in mistake.edits if not _contains(made, old, reference)]
    return bool(changed) and all(_contains(yours, old, reference) for old in changed)


def _contains(source: str, text: str, reference: Solution) -> bool:
    """Return whether the nameless `source` has `text` of the reference, whose first word may be an attribute."""
    return any(_nameless([*before, *_tokens(text)], reference) in source for before in ([], ["."]))


def _by_source(mistakes: Sequence[Mistake], solution: Solution, reference: Solution) -> list[Mistake]:
    """Return the mistakes, the one with the most similar source first; in their order if the source is unknown.

    Sources are similar if many neighbouring words are the same. Those that the source contradicts are the last.
    """
    words = _words(solution)
    text, yours = _nameless(words, solution), Counter(pairwise(words))

    def distance(mistake: Mistake) -> tuple[bool, float]:
        made = Counter(pairwise(_words_of_ours(mistake.solution)))
        return _contradicted(mistake, text, reference), -(made & yours).total() / max((made | yours).total(), 1)

    return sorted(mistakes, key=distance) if words else list(mistakes)


def _words(solution: Solution) -> list[str]:
    try:
        return _tokens(inspect.getsource(solution))
    except (OSError, TypeError):
        return []


_words_of_ours = functools.lru_cache(maxsize=512)(_words)
"""Of the course's own solutions, which stay the same: Python takes a millisecond to find where a source ends."""


def _tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def _nameless(tokens: list[str], solution: Solution) -> str:
    """Return the tokens as text, with `_` for each name that the solution itself gives."""
    known = {*keyword.kwlist, *dir(builtins), *getattr(solution, "__globals__", {})}
    if hasattr(solution, "__code__"):
        known -= {*solution.__code__.co_varnames, *solution.__code__.co_cellvars}
    words = [
        "_" if token.isidentifier() and token not in known and last != "." else token
        for last, token in zip(["", *tokens], tokens, strict=False)
    ]
    return f" {' '.join(words)} "


def _nearest(
    mistakes: Sequence[Mistake], end: float, runs: Runs, cases: Sequence[Case], same_rules: bool = False
) -> Mistake | None:
    """Return the mistake that behaves like the solution in every case, with the fewest other rules and calls.

    The search ends when the CPU time is `end`. With `same_rules`, a mistake that breaks other rules is none.
    """
    nearest, fewest = None, (inf, inf)
    for mistake in mistakes:
        if time.process_time() > end:
            break
        differences = _differences(mistake, runs, cases)
        if differences is not None and differences < fewest and not (same_rules and differences[0]):
            nearest, fewest = mistake, differences
        if fewest == (0, 0):
            break  # each mistake takes its time to run, and none can be nearer
    return nearest


def _differences(mistake: Mistake, runs: Runs, cases: Sequence[Case]) -> tuple[int, int] | None:
    """Count the cases in which rules and calls differed. Return None if the mistake behaves differently in one."""
    rules = calls = 0
    by_rules = _right(runs.trial(cases[0]))
    for case in sorted(cases, key=lambda case: _length(runs, case)):
        trial, made = runs.trial(case), runs.recall(mistake.solution, case)
        if any(made.output) and not any([*trial.yours.output, *trial.expected.output]):  # its message is about printing
            return None
        if (same_rules := _same_rules(trial, made)) is None:
            return None
        if by_rules and not same_rules and _right(trial):
            return None
        rules += not same_rules
        calls += not _near(made.call_forms, trial.yours.call_forms)
    return rules, calls


def _length(runs: Runs, case: Case) -> tuple[bool, int]:
    """Return what puts the quickest case first, but those of one rank last: there, few mistakes differ."""
    calls = runs.recall(runs.exercise.reference, case).calls
    return case.world_size == 1, sum(map(len, calls))


def _same_rules(trial: Trial, made: Observation) -> bool | None:
    """Return whether the mistake breaks the same rules as the solution, or None if it behaves differently."""
    yours, exercise = trial.yours, trial.exercise
    if yours.error is not None or made.error is not None:
        alike = yours.error is not None and made.error is not None and _same_failure(yours.error, made.error)
        return alike or None
    if yours.warnings or made.warnings:  # where nobody waits for an operation, values depend on when it ends
        return _waits_as_little(trial, made) or _kinds(yours.warnings) == _kinds(made.warnings) or None
    if exercise.inputs_matter and not same(yours.after, made.after, exercise.tolerance):
        return None
    if not same(yours.values, made.values, exercise.tolerance):
        return None
    return _near(_broken(trial, yours), _broken(trial, made))


def _waits_as_little(trial: Trial, made: Observation) -> bool:
    """Return whether the mistake behaves the same, except that no warning tells of what the course's function started.

    Wrong values may come from the missing wait. So calls have to be the same as well, unless a rule is broken.
    """
    yours, tolerance = trial.yours, trial.exercise.tolerance
    if made.warnings or not all(_kinds(yours.warnings)) or not same(yours.values, made.values, tolerance):
        return False
    broken = _broken(trial, made)
    wrong = not same(made.values, trial.expected.values, tolerance) and _near(made.call_forms, yours.call_forms)
    return bool(broken or wrong) and _near(_broken(trial, yours), broken)


def _right(trial: Trial) -> bool:
    return trial.yours.error is None and same(trial.yours.values, trial.expected.values, trial.exercise.tolerance)


def _kinds(warnings: Sequence[str]) -> list[bool]:
    """Return for each warning whether an operation was not waited for; if not, a tensor was used too early."""
    return ["never waited" in warning for warning in warnings]


def _broken(trial: Trial, yours: Observation) -> list[str]:
    """Return what the rules report, with the numbers in their tables: other bytes are held for another reason."""
    about = Trial(exercise=trial.exercise, case=trial.case, expected=trial.expected, yours=yours)
    found = [finding for rule in trial.exercise.rules for finding in rule(about)]
    return [text for finding in found for text in (finding.observed, *(row.yours for row in finding.table))]


def _same_failure(yours: CourseError, made: CourseError) -> bool:
    if not (isinstance(yours, RankError) and isinstance(made, RankError)):
        return str(yours) == str(made)
    ends = [(_end(a), _end(b)) for a, b in zip(yours.ranks, made.ranks, strict=True)]
    known = [(a, b) for a, b in ends if a is not None and b is not None]
    return yours.kind == made.kind and bool(known) and all(_near(a, b) for a, b in known)


def _near(one: object, other: object) -> bool:
    """Return whether two are the same as text, except for numbers that differ by at most 6 %.

    An object that is sent is pickled together with the addresses of its tensors, twice each. They have 8 or 15 digits,
    depending on the thread that made the tensors. For a small tensor of 330 bytes that is 4 %.
    """
    parts = [re.split(r"(\d[\d,]*)", str(value)) for value in (one, other)]
    return len(parts[0]) == len(parts[1]) and all(
        a == b or (place % 2 == 1 and abs(_number(a) - _number(b)) <= 0.06 * _number(a))
        for place, (a, b) in enumerate(zip(*parts, strict=True))
    )


def _number(text: str) -> int:
    return int(text.replace(",", ""))


_OF_THIS_RUN = re.compile(r"\[enforce fail at .*|/[\w./-]+", re.DOTALL)
"""The parts of a message that differ from run to run: gloo's own lines and addresses, and paths of temporary files."""


def _end(report: RankReport) -> Any:
    """Return how a rank ended: its exception, or the call in which it waited.

    None if it was stopped before that. How far it got then depends on the load of the machine.
    """
    if report.raised is not None:
        return report.raised.type, _OF_THIS_RUN.sub("", report.raised.message)
    if report.call is not None:
        return report.call.variant, report.call.root, report.call.shapes
    return report.state if report.state == "returned" else None
