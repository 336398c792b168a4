"""Changing what other modules do while ranks run, and only then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Replacement = tuple[Any, str, Any]
"""Owner, attribute name and what stands in for it."""


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Set the attributes inside the block, and set them back after it."""
    originals = [(owner, name, stand_in, getattr(owner, name)) for owner, name, stand_in in replacements]
    for owner, name, stand_in, _ in originals:
        setattr(owner, name, stand_in)
    try:
        yield
    finally:
        for owner, name, stand_in, original in reversed(originals):
            if getattr(owner, name) is stand_in:  # else it was replaced again since, by another hand
                setattr(owner, name, original)


class Shared:
    """A context that several runs use at once: the first one enters it, the last one leaves it."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._users = 0
        self._entered: AbstractContextManager[None] | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Be one of those who use it."""
        with self._lock:
            if self._users == 0:
                self._entered = self._make()
                self._entered.__enter__()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._entered is not None:
                    self._entered.__exit__(None, None, None)
