"""Patching: replace attributes of other modules while ranks run, and restore them afterwards."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Replacement = tuple[Any, str, Any]
"""Owner, attribute name and new value."""


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Set the attributes inside the block, and restore them after it."""
    # From the dictionaries: `getattr` would bind a class method.
    originals = [(*one, vars(one[0]).get(one[1], _INHERITED)) for one in replacements]
    for owner, name, new, _ in originals:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, new, original in reversed(originals):
            if vars(owner).get(name) is not new:  # other code has replaced it since
                continue
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


_INHERITED = object()
