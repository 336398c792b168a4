"""Patching: replace attributes of other modules while ranks run, and restore them afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Replacement = tuple[Any, str, Any]
"""Owner, attribute name and new value."""


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Set the attributes inside the block, and restore them after it."""
    originals = [(*one, getattr(one[0], one[1]), one[1] in vars(one[0])) for one in replacements]
    for owner, name, new, _, _ in originals:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, new, original, is_own in reversed(originals):
            if getattr(owner, name) is not new:  # other code has replaced it since
                continue
            if is_own:
                setattr(owner, name, original)
            else:  # it was inherited
                delattr(owner, name)


class SharedContext:
    """A context that several runs share: the first user enters it, the last user exits it."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._users = 0
        self._entered: AbstractContextManager[None] | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Enter the shared context; the last user exits it."""
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
