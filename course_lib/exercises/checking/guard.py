"""Detect that a solution has replaced functions that its check relies on, and restore them.

A solution that assigns to `dist.all_reduce`, or to a name of the course, would change the reference too, in this check
or the next. Functions and classes are watched: those of `torch.distributed` as they were when the course was imported;
those of torch, of Python and of the course as they were when the check began.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ...world import is_learners

Watched = tuple[Any, str, Any]
"""A module or class, a name in it, and its original value."""

_ABSENT = object()
_METHODS = (FunctionType, property, staticmethod, classmethod)


def _callables(owner: Any) -> Iterator[Watched]:
    return ((owner, name, value) for name, value in vars(owner).items() if callable(value))


_DISTRIBUTED = [*_callables(dist), *_callables(distributed_c10d)]
_TORCH = (torch, torch.Tensor, torch.nn.functional)


class Guard:
    """The functions and classes that existed when the guard was made."""

    def __init__(self) -> None:
        course = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "course_lib"]
        pythons = [entry for entry in _callables(builtins) if isinstance(entry[2], BuiltinFunctionType | type)]
        self._watched = [*_DISTRIBUTED, *pythons]
        for owner in _TORCH:
            self._watched += _callables(owner)
        self._watched += _not_in(torch.Tensor, dir(torch.Tensor))  # these are inherited
        for module in course:
            self._watched += _callables(module)
            self._watched += _not_in(module, [name for _, name, _ in pythons])  # they would hide Python's own
        self._classes = {cls: set(vars(cls)) for module in course for cls in _classes(module)}
        for cls in self._classes:
            self._watched += [(cls, name, value) for name, value in vars(cls).items() if isinstance(value, _METHODS)]

    def restore(self) -> list[str]:
        """Restore what was replaced, and return the names, such as `torch.distributed.all_reduce`."""
        replaced = [entry for entry in self._watched if _is_replaced(*entry)]
        for cls, names in self._classes.items():
            replaced += [(cls, name, _ABSENT) for name in vars(cls).keys() - names]
        for owner, name, value in replaced:
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        return sorted({f"{owner.__name__}.{name}" for owner, name, _ in replaced})


def _is_replaced(owner: Any, name: str, value: Any) -> bool:
    now = vars(owner).get(name, _ABSENT)
    # torch replaces some of its own functions when a part of it is first used.
    by_torch = owner in _TORCH and isinstance(now, FunctionType) and not is_learners(now.__code__)
    return now is not value and not by_torch


def _not_in(owner: Any, names: list[str]) -> list[Watched]:
    return [(owner, name, _ABSENT) for name in names if name not in vars(owner)]


def _classes(module: ModuleType) -> Iterator[type]:
    return (value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__)
