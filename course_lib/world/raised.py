"""An exception of one rank, as text."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from types import TracebackType

from .sites import Site, is_learners, site_in_dump

LINE_LIMIT = 500
"""Characters shown of each line of an exception's text."""


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception of one rank, as text: a kept traceback would keep the rank's groups and tensors alive.

    Attributes:
        type: name of the exception's class.
        message: its text.
        site: the innermost line of the learner's.
        traceback: the whole of it, library frames included.
    """

    type: str
    message: str
    site: Site | None
    traceback: str

    @staticmethod
    def of(error: BaseException) -> Raised:
        """The record of `error`, which can be dropped afterwards."""
        message, _, stack = _text(error).partition("\n\nAt:\n")  # of one that was raised in a callback, by pybind11
        return Raised(
            type=type(error).__name__,
            message=message,
            site=site_in_dump(f"{stack}\n") or _innermost(error.__traceback__),
            traceback="".join(traceback.format_exception(error)),
        )

    @staticmethod
    def unfinished() -> Raised | None:
        """What the learner's code has raised and this thread is not through with: it is in an `except`, in a `finally`,
        or on its way out of a `with`."""
        error = sys.exception()
        record = None if error is None else Raised.of(error)
        return record if record is not None and record.site is not None else None

    def __str__(self) -> str:
        lines = [line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}…" for line in self.message.splitlines()]
        first, *rest = lines or [""]
        text = f"{self.type}: {first}" if first else self.type
        return "\n".join([text, *(f"    {line}" for line in rest[:6])])


def _text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "0" if error.code is None else repr(error.code)
    try:
        return str(error).strip()
    except Exception as broken:  # in a __str__ of the learner's
        return f"<no text: its __str__ raised {type(broken).__name__}>"


def _innermost(trace: TracebackType | None) -> Site | None:
    found = None
    while trace is not None:
        if is_learners(trace.tb_frame.f_code):
            code = trace.tb_frame.f_code
            found = Site(filename=code.co_filename, line=trace.tb_lineno, function=code.co_name)
        trace = trace.tb_next
    return found
