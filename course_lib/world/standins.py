"""Replacing attributes of other modules while ranks run, and only then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Replacement = tuple[Any, str, Any]
"""Owner, attribute name and what stands in for it."""


class StandIns:
    """Puts stand-ins in place while at least one run needs them.

    Args:
        make: the replacements, made anew each time that the first run comes.
    """

    def __init__(self, make: Callable[[], Iterable[Replacement]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._runs = 0
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside it, threads may be ranks."""
        with self._lock:
            self._runs += 1
            if self._runs == 1:
                for owner, name, stand_in in list(self._make()):
                    self._replaced.append((owner, name, stand_in, getattr(owner, name)))
                    setattr(owner, name, stand_in)
        try:
            yield
        finally:
            with self._lock:
                self._runs -= 1
                while self._replaced and self._runs == 0:
                    owner, name, stand_in, original = self._replaced.pop()
                    if getattr(owner, name) is stand_in:  # else it was replaced again since, by another hand
                        setattr(owner, name, original)
