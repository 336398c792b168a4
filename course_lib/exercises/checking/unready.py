"""Checks before a solution runs: was it attempted, and can the exercise call it?"""

from __future__ import annotations

import dis
import inspect
from types import CodeType
from typing import Any

from ..form.declaration import Solution
from .findings import Finding


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
