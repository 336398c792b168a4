"""Solutions without a result: not attempted, not callable as the exercise calls them, failed, or stopped."""

from __future__ import annotations

import dis
import inspect
import re
from types import CodeType
from typing import Any

from ...errors import CourseError, who
from ...world import Call, RankError, quoted
from ..form.declaration import Solution
from .findings import Finding
from .observe import Observation, Trial
from .plain import Cause

NO_FUNCTION = Cause(
    likely="Your function has no `return`, or it calls the function that it should return, as in `return finish()`.",
    action="Return the function itself, without parentheses behind its name.",
)

_OWN_NAMES = " A cell with %%ranks, and a program, see only names of their own."
"""A part of the advice on an unknown name that does not concern exercises."""


def unattempted(solution: Any, stub: Solution) -> bool:
    """Return whether `solution` is the unchanged stub, or has an empty body. Comments and docstrings do not count."""
    code = getattr(solution, "__code__", None)
    return isinstance(code, CodeType) and _does(code) in (_does(stub.__code__), _does(_empty.__code__))


def _empty() -> None:
    pass


def _does(code: CodeType) -> list[tuple[str, Any]]:
    """Return a function's instructions, without its position in the file.

    The compiler uses a different opcode for a call on a module that is imported in the same file, as here and unlike in
    a notebook's cell, and then different jump targets.
    """
    steps = []
    for step in dis.get_instructions(code):
        if step.opname == "PUSH_NULL":  # since Python 3.13 a part of that difference
            continue
        value = None if step.opcode in (*dis.hasjrel, *dis.hasjabs) else step.argval
        name = step.opname.replace("LOAD_METHOD", "LOAD_ATTR")
        steps.append((name, _does(value) if isinstance(value, CodeType) else value))
    return steps


def misfit(solution: Any, stub: Solution) -> Finding | None:
    """Return why `solution` cannot be called as the exercise calls it, or None."""
    parameters = inspect.signature(stub).parameters.values()
    signature = f"{stub.__name__}({', '.join(parameter.name for parameter in parameters)})"
    if not callable(solution):
        what = "None" if solution is None else f"an object of type {type(solution).__name__}"
        return Finding(
            observed=f"this is {what}, and the exercise asks for a function.",
            action=f"Write `def {signature}:` below the line with `@exercise`.",
            technical=True,
        )
    flags = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if any(flag(solution) != flag(stub) for flag in flags):
        return Finding(
            observed="this function has a yield or an async, so calling it does not run its body.",
            action="Make it a plain function that returns its result.",
            technical=True,
        )
    try:
        yours = inspect.signature(solution)
    except (TypeError, ValueError):  # a built-in function
        return None
    keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    try:
        yours.bind(*[None] * (len(parameters) - len(keywords)), **dict.fromkeys(keywords))
    except TypeError as error:
        return Finding(
            observed=f"your function cannot be called as the exercise calls it, {signature}: {error}.",
            action="Put the arguments back as they were in the cell.",
            technical=True,
        )
    return None


def asks_for_a_function(trial: Trial) -> bool:
    """Return whether the solution has to return a function."""
    return "Callable" in str(inspect.signature(trial.exercise.stub).return_annotation)


def failure(trial: Trial, error: CourseError) -> Finding:
    """Return the finding of a trial whose solution ended with `error`."""
    if not isinstance(error, RankError):
        return Finding(observed=str(error), action="Then run the cell again.", technical=True)
    observed, _, action = str(error).partition("\nNext: ")
    held = _held_back(error, trial)
    for call in held.values():
        own = rf"^  (.*) waited in recv .* at {re.escape(str(call.line))},.*"
        observed = re.sub(own, r"  the check held \1 back", observed, flags=re.MULTILINE)
    waiting = [report.rank for report in error.ranks if report.call is not None and report.rank not in held]
    if error.kind == "deadlock" and held and waiting:  # those that are held back do not wait for what the others do
        waits = f"{who(waiting)} wait{'s' * (len(waiting) == 1)}"
        observed = re.sub("^deadlock: .*", f"deadlock: {waits}, while the check holds {who(list(held))} back", observed)
    if trial.yours.timed_out:
        return _stopped(trial.yours, observed)
    action = action.replace(_OWN_NAMES, "")
    raised = error.ranks[error.rank].raised
    if raised is not None and not trial.case.world_size:
        line = f"\n  {quoted(raised.source_line)}" if raised.source_line else ""
        observed = f"{'your function' if line else 'library code'} raised {raised}{line}"
    if error.kind == "deadlock" and held:
        action = (
            "the check holds a rank back, to see who waits for it. Find what your code waits for in the lines above, "
            "and wait for it later (`async_op=True`) or start it earlier."
        )
    nothing = raised is not None and raised.message == "'NoneType' object is not callable" and not raised.source_line
    if nothing and asks_for_a_function(trial):
        return Finding(observed=f"{trial.who([error.rank])} returned None, expected a function.", **vars(NO_FUNCTION))
    if raised is not None and raised.source_line and "raise NotImplementedError" in quoted(raised.source_line):
        return Finding(
            observed=observed,
            likely="The cell came with the line `raise NotImplementedError`; it is still there, and ends the function.",
            action="Delete that line.",
            traceback=error.traceback,
            technical=True,
        )
    return Finding(observed=observed, action=action, traceback=error.traceback, technical=True)


def _held_back(error: RankError, trial: Trial) -> dict[int, Call]:
    """Return the ranks that waited for messages of the `trial` of an asynchronous exercise, and their calls."""
    file = getattr(getattr(trial.exercise.trial, "__code__", None), "co_filename", "")
    calls = {r.rank: r.call for r in error.ranks if r.call is not None and r.call.op == "recv"}
    held = {rank: call for rank, call in calls.items() if call.line is not None and call.line.filename == file}
    return held if trial.exercise.asynchronous else {}


def _stopped(yours: Observation, observed: str) -> Finding:
    if not yours.waited:
        action = "Look for a loop that never ends, or for far more work than the task needs."
        return Finding(observed=observed, action=action, technical=True)
    return Finding(
        observed=observed,
        likely=f"In that time, the kernel computed for {yours.cpu_share:.0%}. So the machine is busy with other "
        "work, or your code waits: `time.sleep`, a lock, a file.",
        action="Is the line above in a loop, and does the loop end? If your code ends and does not wait, run the cell "
        "again when the machine is less busy.",
        technical=True,
    )
