"""Checks of the planner's arguments, so that every refusal reads the same; a search; the rows of a table."""

import csv
import reprlib
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from math import isfinite, nan
from numbers import Real
from pathlib import Path
from typing import Any

from ...errors import CourseError


class PlanError(CourseError, ValueError):
    """A question that cannot be planned. A notebook shows its text without the frames of the planner."""


def known(what: str, name: object, names: Iterable[object]) -> None:
    """Raise PlanError unless `name` is one of `names`."""
    names = list(names)
    if name not in names:
        texts, typed = [other for other in names if isinstance(other, str)], str(name).lower()
        close = [text for text in texts if typed.startswith(f"{text}-")] or get_close_matches(typed, texts, n=1)
        few = len(names) <= 16 or not close
        hint = f"Choose one of {', '.join(map(repr, names))}." if few else f"Did you mean {close[0]!r}?"
        raise PlanError(f"{what}={name!r}: there is no such {what}. {hint}")


def whole(what: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int: 64, or 7.5e9, which is whole too. Raises PlanError unless it is whole and in range."""
    number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else nan
    if number != number // 1 or number < least or (most is not None and number > most):
        limits = f"from {least} to {most}" if most is not None else f"{least} or more"
        nearest = most if most is not None and number > most else max(least, int(number) if isfinite(number) else least)
        hint = f" Try {what}={nearest}." if number is value else ""
        raise PlanError(f"{what}={reprlib.repr(value)}: it has to be a whole number, {limits}.{hint}")
    return int(number)


def largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` for which `holds`; 0 if it does not hold for 1."""
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
