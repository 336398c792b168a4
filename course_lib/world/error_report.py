"""Exceptions of one rank, as text."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from types import TracebackType

from ..errors import CourseError
from .source_lines import SourceLine, is_learners, source_line_in_dump

LINE_LIMIT = 500
"""Characters shown of each line of an exception's text."""


@dataclass(frozen=True, kw_only=True)
class ErrorReport:
    """An exception of one rank, as text: a kept traceback would keep the rank's groups and tensors alive.

    Attributes:
        type: name of the exception's class.
        message: its text.
        site: the innermost line of the learner's.
        traceback: the whole of it, library frames included.
    """

    type: str
    message: str
    source_line: SourceLine | None
    traceback: str

    @staticmethod
    def of(error: BaseException) -> ErrorReport:
        """The record of `error`, which can be dropped afterwards."""
        cause = error.__cause__
        shown = cause if isinstance(cause, CourseError) else error  # torch's pipeline() raises an error of its own
        message, _, stack = _text(shown).partition("\n\nAt:\n")  # of one that was raised in a callback, by pybind11
        return ErrorReport(
            type=type(shown).__name__,
            message=message,
            source_line=source_line_in_dump(f"{stack}\n") or _innermost(error.__traceback__),
            traceback="".join(traceback.format_exception(error)),
        )

    def __str__(self) -> str:
        lines = [line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}…" for line in self.message.splitlines()]
        first, *rest = lines or [""]
        text = f"{self.type}: {first}" if first else self.type
        return "\n".join([text, *(f"    {line}" for line in rest[:6])])


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """An exception that a thread is not through with: it is in an `except`, a `finally`, or on its way out of a `with`.

    Attributes:
        type: name of the exception's class.
        text: the first line of what it says; empty where only code of its own, or of what it was made with, could tell.
        site: the innermost line of the learner's.
    """

    type: str
    text: str
    source_line: SourceLine

    @staticmethod
    def here() -> Unfinished | None:
        """This thread's, if it has one that the learner's code has raised."""
        error = sys.exception()
        if not isinstance(error, Exception | SystemExit):  # such as GeneratorExit, with which Python ends a generator
            return None
        source_line = _innermost(error.__traceback__)
        if source_line is None:
            return None
        args = BaseException.__dict__["args"].__get__(error)  # whatever its class makes of them
        plain = all(type(arg) in (str, bytes, int, float, type(None)) for arg in args)
        text = str(error) if plain and type(error).__module__ == "builtins" else args[0] if args else ""
        line = text.strip().partition("\n")[0][:LINE_LIMIT] if type(text) is str else ""
        return Unfinished(type=type(error).__name__, text=line, source_line=source_line)

    def __str__(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


def _text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "0" if error.code is None else repr(error.code)
    try:
        return str(error).strip()
    except Exception as broken:  # in a __str__ of the learner's
        return f"<no text: its __str__ raised {type(broken).__name__}>"


def _innermost(trace: TracebackType | None) -> SourceLine | None:
    found = None
    while trace is not None:
        if is_learners(trace.tb_frame.f_code):
            code = trace.tb_frame.f_code
            found = SourceLine(filename=code.co_filename, line=trace.tb_lineno, function=code.co_name)
        trace = trace.tb_next
    return found
