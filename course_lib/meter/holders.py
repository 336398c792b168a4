"""Who keeps the memory of a tensor from being freed."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .graph import saved_for_backward
from .storages import plain, storage_of

_HERE = os.path.join(os.path.dirname(__file__), "")
_DEEPEST = 3
"""Containers in containers that are looked through for a name."""


def who_holds(tensor: Tensor) -> tuple[str, ...]:
    """Everything that keeps the memory of `tensor`, a name for each where there is one.

    These are variables, attributes, globals and closures with the tensor or a view of it, on all threads and so on
    all simulated ranks, and graphs that saved it for backward. It takes a tenth of a second: all objects are looked at.
    """
    storage = storage_of(next(plain(tensor)))
    return () if storage is None else holders(storage)


def holders(storage: torch.UntypedStorage, is_learners: Callable[[CodeType], bool] = lambda _: True) -> tuple[str, ...]:
    """Everything that keeps `storage`; of running functions, those whose code `is_learners`."""
    objects = gc.get_objects()
    tensors = [one for one in objects if issubclass(type(one), Tensor)]
    modules = [one for one in objects if issubclass(type(one), nn.Module)]
    del objects
    keeping = {id(one): one for one in tensors if any(storage_of(part) is storage for part in plain(one))}
    found = dict.fromkeys(_variables(keeping, is_learners))
    found |= dict.fromkeys(_in_modules(keeping, modules))
    found |= dict.fromkeys(_names(keeping, "", _DEEPEST))
    for part, node in saved_for_backward(tensors):
        if storage_of(part) is storage:
            found[f"autograd, which saved it for {node}"] = None
    return tuple(found) or ("something that has no name",)


def _variables(keeping: Mapping[int, Any], is_learners: Callable[[CodeType], bool]) -> Iterator[str]:
    """Variables of running functions."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for ident, innermost in sys._current_frames().items():
        thread = threads.get(ident, threading.current_thread())
        where = "" if thread is threading.current_thread() else f" on {thread.name}"
        frame: FrameType | None = innermost
        while frame is not None:
            if is_learners(frame.f_code) and not frame.f_code.co_filename.startswith(_HERE):
                for name, value in variables(frame).items():
                    if id(value) in keeping or any(id(item) in keeping for item in _items(value)):
                        yield f"variable `{name}` of {frame.f_code.co_name}{where}"
            frame = frame.f_back


def variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a running function. `frame.f_locals` alone would itself hold them from then on."""
    local = frame.f_locals
    found = dict(local)
    if type(local) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # since Python 3.13 it is only a view
        local.clear()
    return found


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if type(value) in (list, tuple, set) else []


def _in_modules(keeping: Mapping[int, Any], modules: list[nn.Module]) -> Iterator[str]:
    for module in modules:
        for name, value in [*module._parameters.items(), *module._buffers.items()]:
            if id(value) in keeping:
                yield f"attribute `{name}` of a {type(module).__name__}"


def _names(keeping: Mapping[int, Any], within: str, depth: int) -> Iterator[str]:
    """Attributes, globals and closures that lead to one of the objects, straight or through containers."""
    containers: dict[int, Any] = {}
    for referrer in gc.get_referrers(*keeping.values()):
        if isinstance(referrer, CellType):
            for function, name in _uses(referrer):
                yield f"{within}variable `{name}`, which {function} closes over"
        elif type(referrer) in (list, tuple, set):
            containers[id(referrer)] = referrer
        elif isinstance(referrer, dict):
            owner = next((one for one in gc.get_referrers(referrer) if _is_namespace(referrer, one)), None)
            if owner is not None:
                yield from _attributes(owner, referrer, keeping, within)
            elif referrer is not keeping:
                containers[id(referrer)] = referrer
        elif hasattr(referrer, "__dict__"):
            yield from _attributes(referrer, vars(referrer), keeping, within)
    if containers and depth:
        yield from _names(containers, within or "something in ", depth - 1)


def _is_namespace(names: dict[Any, Any], owner: Any) -> bool:
    """Whether it is in `names` that an object keeps its attributes, or a function its globals."""
    return (owner.__globals__ if isinstance(owner, FunctionType) else getattr(owner, "__dict__", None)) is names


def _attributes(owner: Any, names: Mapping[Any, Any], keeping: Mapping[int, Any], within: str) -> Iterator[str]:
    for name in [name for name, value in list(names.items()) if id(value) in keeping]:
        if isinstance(owner, nn.Module) and name in ("_parameters", "_buffers"):
            continue  # named already
        if isinstance(owner, FunctionType | ModuleType):
            yield f"{within}global variable `{name}`"
        else:
            yield f"{within}attribute `{name}` of a {type(owner).__name__}"


def _uses(cell: CellType) -> Iterator[tuple[str, str]]:
    """The functions that close over `cell`, and the name by which they know it."""
    for closure in gc.get_referrers(cell):
        for function in gc.get_referrers(closure) if isinstance(closure, tuple) else ():
            if isinstance(function, FunctionType):
                names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
                yield from ((function.__name__, name) for name, closed_over in names if closed_over is cell)
