"""Compare a solution's behaviour with the reference's, and report each difference and its probable cause."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from ...errors import CourseError
from ...world import RankError, quoted
from .findings import Finding, Row
from .forms import recognise_form
from .gap import Cause, Gap
from .observe import Trial
from .patterns import recognise_pattern
from .plain import Path, Plain, at, difference
from .texts import kind, pair, short


def findings(trial: Trial) -> list[Finding]:
    """Return what is wrong with a trial; empty if nothing is."""
    if trial.yours.error is not None:
        return [_error(trial, trial.yours.error)]
    return [*_values(trial), *_inputs(trial), *(found for rule in trial.exercise.rules for found in rule(trial))]


# -- results -----------------------------------------------------------------------------------------------------


def _values(trial: Trial) -> Iterator[Finding]:
    expected, yours = trial.expected.values, trial.yours.values
    if all(value is None for value in expected):  # the result is in the arguments
        return
    gap = Gap(expected=expected, given=yours, before=trial.yours.before, tolerance=trial.exercise.tolerance)
    if not gap.ranks:
        return
    inner = _innermost(gap)
    cause = _cause(trial, gap, inner)
    verb = "returned" if trial.exercise.trial is None else "came to"
    yield Finding(observed=_sentence(trial, inner, verb), likely=cause.likely, action=cause.action, table=_table(inner))


def _innermost(gap: Gap) -> Gap:
    """Return the same gap at the first differing position in the first differing result."""
    rank = gap.ranks[0]
    path = difference(gap.expected[rank], gap.given[rank], gap.tolerance)
    assert path is not None
    expected, given = ([_at(value, path) for value in values] for values in (gap.expected, gap.given))
    return Gap(expected=tuple(expected), given=tuple(given), before=gap.before, tolerance=gap.tolerance, path=path)


def _at(value: Plain, path: Path) -> Plain:
    try:
        return at(value, path)
    except (LookupError, TypeError):
        return None


def _cause(trial: Trial, gap: Gap, inner: Gap) -> Cause:
    # If a named part is wrong in the same way on all ranks, the cause is not in the distribution over ranks, whatever
    # the other parts are.
    whole = inner.path and not (isinstance(gap.expected[0], dict) and inner.alike)
    found = recognise_form(inner) or (recognise_pattern(gap) if whole else None) or recognise_pattern(inner)
    if found is not None:
        return found
    if any(trial.expected.calls) and not any(trial.yours.calls):
        return Cause(
            likely="No rank called a collective, a send or a recv: nothing of another rank can be in the result.",
            action="Ask which ranks' values belong in the result of one rank, and how they get there.",
        )
    return Cause(
        likely="",
        action=f"Work out by hand what {trial.who(inner.ranks[:1])} should come to, "
        "then print what it has after each line.",
    )


def _sentence(trial: Trial, gap: Gap, verb: str) -> str:
    rank = gap.ranks[0]
    expected, given = gap.expected[rank], gap.given[rank]
    if recognise_form(gap) is not None:
        words = kind(given), kind(expected)
        words = words if words[0] != words[1] else (short(given), short(expected))
    else:
        words = pair(expected, given, gap.tolerance)[::-1]
    place = "".join(f"[{key!r}]" for key in gap.path)
    where = f", at {place}," if place else ""
    return f"{trial.who([rank])} {verb}{where} {words[0]}, expected {words[1]}."


def _table(gap: Gap) -> tuple[Row, ...]:
    texts = [pair(expected, given, gap.tolerance) for expected, given in zip(gap.expected, gap.given, strict=True)]
    return tuple(Row(rank=rank, expected=expected, yours=yours) for rank, (expected, yours) in enumerate(texts))


# -- arguments ---------------------------------------------------------------------------------------------------


def _inputs(trial: Trial) -> Iterator[Finding]:
    if not trial.exercise.inputs_matter:
        return
    for position in range(len(trial.expected.after[0])):
        before, expected, yours = (
            tuple(arguments[position] for arguments in by_rank)
            for by_rank in (trial.expected.before, trial.expected.after, trial.yours.after)
        )
        gap = Gap(expected=expected, given=yours, before=trial.yours.before, tolerance=trial.exercise.tolerance)
        if gap.ranks:
            untouched = all(gap.same(before[rank], yours[rank]) for rank in gap.ranks)
            kept = all(gap.same(before[rank], expected[rank]) for rank in gap.ranks)
            others = set(range(gap.world_size)) - set(gap.ranks)
            reached = any(not gap.same(before[rank], expected[rank]) for rank in others)
            left = _not_reached if reached else _not_changed
            cause = _changed if kept else left if untouched else _cause(trial, gap, _innermost(gap))
            name = _argument(trial, position)
            what = "changed in place" if kept else "left as it was" if untouched else "left with other values"
            yield Finding(
                observed=f"{name} was {what} on {trial.who(gap.ranks)}.",
                likely=cause.likely,
                action=cause.action,
                table=_table(gap),
            )


_changed = Cause(
    likely="An operation wrote into the argument: `+=`, a method whose name ends in `_`, an assignment to `x[...]`, "
    "or a collective, which writes into its tensor.",
    action="Work on a copy: `x = x.clone()`.",
)
_not_changed = Cause(
    likely="The result is expected in the argument itself; `x = ...` only gives the name x to another tensor.",
    action="Write into it: `x.copy_(result)`, or hand it to the operation that fills it.",
)
_not_reached = Cause(
    likely="Other ranks have what they should: it is written, and did not come to this rank.",
    action="Follow it from rank to rank: which call should bring it here, and which rank makes the other end?",
)


def _argument(trial: Trial, position: int) -> str:
    names = list(inspect.signature(trial.exercise.stub).parameters)
    direct = trial.exercise.trial is None and position < len(names)
    return f"the argument {names[position]}" if direct else f"argument {position + 1}"


# -- errors ------------------------------------------------------------------------------------------------------


def _error(trial: Trial, error: CourseError) -> Finding:
    if not isinstance(error, RankError):
        return Finding(observed=str(error), action="Then run the cell again.")
    observed, _, action = str(error).partition("\nNext: ")
    raised = error.ranks[error.rank].raised
    if raised is not None and not trial.case.world_size:
        observed = f"your function raised {raised}\n  {quoted(raised.source_line)}"
    if raised is not None and raised.type == "NotImplementedError":
        return Finding(
            observed=observed,
            likely="The cell came with the line `raise NotImplementedError`; it is still there, and ends the function.",
            action="Delete that line.",
            traceback=error.traceback,
        )
    if error.kind == "timeout":
        action = "Look for a loop that never ends, or for far more work than the task needs."
    return Finding(observed=observed, action=action, traceback=error.traceback)
