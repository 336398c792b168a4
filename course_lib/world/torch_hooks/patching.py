"""Patching: replace attributes of other modules while ranks run, and restore them afterwards."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
