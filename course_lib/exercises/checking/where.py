"""The first call at which a solution's values differ from the reference's: the place to look, if no cause is known.

Both run once more on the failing case, and keep the small tensors that each call brings.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...world import Call
from ..form.declaration import Solution
from .findings import Finding
from .observe import Trial, observe
from .plain import close, same
from .texts import pair


def first_wrong_call(finding: Finding, trial: Trial, solution: Solution) -> Finding:
    """Return `finding` with the first call that brings other values than the reference's, or with the last call.

    If ranks make a collective at different lines, these are named instead. It stays as it is if the solution makes
    other calls before that, or makes its calls in a different order, or divides before a sum, which may all be right;
    or if the tensors that differ are large.
    """
    yours, expected = (
        observe(trial.exercise, one, trial.case, replay=True).calls for one in (solution, trial.exercise.reference)
    )
    if crossed := _crossed(yours, solution):
        action = f"Do these two lines belong together? If they do: {finding.action}"
        return replace(finding, observed=f"{finding.observed} {crossed}", action=action)
    ranked = [(place, rank, call) for rank, calls in enumerate(yours) for place, call in enumerate(calls)]
    right, known = dict[int, Call](), True  # the last call of a rank that brings the reference's values
    for place, rank, call in sorted(ranked, key=lambda one: one[:2]):
        line, reference = _line(call, solution), next(iter(expected[rank][place:]), None)
        if reference is None or _form(call) != _form(reference):
            return finding
        if not (_kept(call) and _kept(reference)) or call.inside in ("save", "load"):  # pickles: names differ freely
            known = known and not call.shapes  # a call without tensors, such as new_group, brings nothing
        elif words := _difference(call, reference, trial.exercise.tolerance):
            scaled = call.reduce_op and _scaled(call, reference, trial.exercise.tolerance)
            if not line or scaled or call.op in ("send", "recv"):
                return finding
            alike = [one for one in expected[rank] if _kept(one) and _form(one) == _form(call)]
            if not all(_difference(call, one, trial.exercise.tolerance) for one in alike):
                return finding
            seen = f"On rank {rank}, {call.name} at line {line} is the first call with other values: {words[1]}"
            action = f"Look at what line {line} is given then, and at everything that ran before {call.name}."
            if last := right.get(rank):
                action += f" {last.name} at line {_line(last, solution)} still brings the reference's values."
            seen += f"; the reference brings {words[0]}."
            return replace(finding, observed=f"{finding.observed} {seen}", action=action)
        elif line:
            right[rank] = call
    if not right or not known or list(map(len, yours)) != list(map(len, expected)):
        return finding
    seen = "Every call brings the same values as the reference's."
    end = max(_line(call, solution) for calls in yours for call in calls)
    action = f"Look at what is computed without these calls, or after them. The last of them is at line {end}."
    return replace(finding, observed=f"{finding.observed} {seen}", action=action)


def _crossed(calls: tuple[tuple[Call, ...], ...], solution: Solution) -> str:
    """Return which two ranks made the first collective that they did not make at the same line; empty if none."""
    for made in zip(*([call for call in one if call.op not in ("send", "recv")] for one in calls), strict=False):
        lines = [_line(call, solution) for call in made]
        rank = next((rank for rank, line in enumerate(lines) if line != lines[0]), 0)
        if rank and made[0].name == made[rank].name:
            return f"In {made[0].name}, rank 0 is at line {lines[0]} and rank {rank} at line {lines[rank]}."
    return ""


def _form(call: Call) -> tuple[object, ...]:
    return call.op, call.root, call.shapes, call.reduce_op


def _line(call: Call, solution: Solution) -> int:
    """Return the learner's line that made the call; 0 if the exercise made it."""
    file = getattr(getattr(solution, "__code__", None), "co_filename", "")
    return next((line.line for line in (call.line, call.line.caller) if line and line.filename == file), 0)


def _kept(call: Call) -> bool:
    """Return whether all of what the call brings is known."""
    return call.values is not None and len(call.values.before) == len(call.values.brought)


def _difference(call: Call, reference: Call, tolerance: float) -> tuple[str, str] | None:
    """Return what the reference and the solution bring, as texts, if that differs."""
    assert call.values is not None and reference.values is not None
    for (_, mine), (_, right) in zip(call.values.before, reference.values.before, strict=False):
        if not same(right, mine, tolerance):
            return pair(right, mine, tolerance)
    return None


def _scaled(call: Call, reference: Call, tolerance: float) -> bool:
    """Return whether the solution brings what the reference brings, times one positive factor."""
    both = [one.values.before for one in (call, reference) if one.values is not None]
    mine, right = (tuple(number for _, value in before for number in value) for before in both)
    factor = max(map(abs, mine)) / (max(map(abs, right)) or math.inf)
    return factor > 0 and close(tuple(factor * number for number in right), mine, tolerance)
