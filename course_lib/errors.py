"""The one family of errors that is meant for readers, and functions that name ranks and faults of files for them."""

import json
import textwrap
import traceback
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)


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


def who(ranks: Sequence[int], world_size: int | None = None) -> str:
    """Return `rank 3`, `ranks 0, 1, 5-9`, `both ranks` or `all 4 ranks`."""
    if len(ranks) == world_size and world_size > 1:
        return "both ranks" if world_size == 2 else f"all {world_size} ranks"
    # Neighbours have the same difference between their rank and their position.
    spans = [[rank for _, rank in group] for _, group in groupby(enumerate(ranks), lambda item: item[1] - item[0])]
    texts = [f"{span[0]}-{span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(texts)}"


def grouped(keys: Mapping[int, Key]) -> list[tuple[tuple[int, ...], Key]]:
    """Return the ranks that have the same key together, in the order of their first rank."""
    by_key: dict[Key, list[int]] = {}
    for rank, key in sorted(keys.items(), key=lambda item: item[0]):
        by_key.setdefault(key, []).append(rank)
    return [(tuple(ranks), key) for key, ranks in by_key.items()]


def json_trouble(error: BaseException) -> str:
    """Return why a file of JSON cannot be read, in words; `error` is what reading it raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from line {error.lineno}, column {error.colno} on"
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text from byte {error.start} on"
    return f"{error} is not in it" if isinstance(error, KeyError) else str(error)
