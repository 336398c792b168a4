"""The one family of errors that is meant for readers, and how to tell them of a broken file."""

import json
import textwrap
import traceback
from typing import Any


class CourseError(Exception):
    """Something the reader can put right.

    The text says, in this order: what happened, with the values; why; and what to do next.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of this library's frames: the text, and the learner's line."""
        from IPython.core.getipython import get_ipython

        shell: Any = get_ipython()
        cell_of = shell.compile.format_code_name  # None for a file
        frames = [frame for frame in traceback.extract_tb(self.__traceback__) if cell_of(frame.filename)]
        lines = [f"\nCalled in cell {cell_of(at.filename)[1]}, line {at.lineno}:  {at.line}" for at in frames[-1:]]
        return [wrapped(f"{type(self).__name__}: {self}"), *lines]


class CourseWarning(UserWarning):
    """A program of the reader's that went through, and is very likely wrong."""


def wrapped(text: str) -> str:
    """Return `text` in lines that fit a notebook: JupyterLab breaks longer ones inside words."""
    return "\n".join(
        textwrap.fill(line, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )


def json_trouble(error: BaseException) -> str:
    """Return why a file of JSON cannot be read, in words; `error` is what reading it raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from line {error.lineno}, column {error.colno} on"
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text from byte {error.start} on"
    return f"{error} is not in it" if isinstance(error, KeyError) else str(error)
