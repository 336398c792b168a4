"""The references that keep the memory of a tensor from being freed.

Python offers only `gc.get_referrers` for this. Each call traverses every object, which takes about 20 ms in a
notebook's kernel. So one call asks about many objects together.
"""

import gc
import inspect
import sys
import threading
from collections.abc import Iterator, Mapping
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..source_line import is_learners, outward
from .graph import saved_for_backward
from .storages import plain, storage_of

_DEEPEST = 3
"""The number of nested containers that are searched for a name."""


def holders(storage: torch.UntypedStorage) -> tuple[str, ...]:
    """Return the name of everything that keeps `storage`, as far as it has a name.

    These are variables of the learner's functions, attributes, globals and closures with a tensor of it, on all threads
    and therefore on all simulated ranks, and graphs that saved it for backward. The call takes a tenth of a second: see
    the module.
    """
    objects = gc.get_objects()  # while ranks run, older objects are frozen, and not among these
    tensors, modules = _instances(objects, Tensor), _instances(objects, nn.Module)
    del objects  # at once: Python raises a SystemError in a rank that is building a tuple to which a list refers
    tensors = [one for one in tensors if _is_whole(one)]
    keeping = {id(one): one for one in tensors if any(storage_of(part) is storage for part in plain(one))}
    found = [*_variables(keeping), *_in_modules(keeping, modules)]
    nodes = [node for part, node in saved_for_backward(tensors) if storage_of(part) is storage]
    del tensors, modules  # if not, `_names` would find these lists, too
    if keeping:
        found += _names(keeping, "", _DEEPEST)
    found += [f"autograd, which saved it for {node}" for node in nodes]
    return tuple(dict.fromkeys(found)) or ("something that has no name",)


def _instances(objects: list[Any], of: type) -> list[Any]:
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, of)}
    return [one for one in objects if type(one) in kinds]


def _is_whole(tensor: Tensor) -> bool:
    """Return whether `tensor` can be read. While another thread frees it, it cannot."""
    try:
        tensor.grad_fn  # noqa: B018
    except RuntimeError:
        return False
    return True


def _variables(keeping: Mapping[int, Any]) -> Iterator[str]:
    """Yield variables of running functions."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for ident, innermost in sys._current_frames().items():
        thread = threads.get(ident, threading.current_thread())
        where = "" if thread is threading.current_thread() else f" on {thread.name}"
        for frame in outward(innermost):
            if is_learners(frame.f_code):
                for name, value in variables(frame).items():
                    if id(value) in keeping or any(id(item) in keeping for item in _items(value)):
                        yield f"variable `{name}` of {frame.f_code.co_name}{where}"


def variables(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a running function, without the reference to them that `frame.f_locals` keeps."""
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
        own = vars(module)  # without attributes while another thread frees the module
        for name, value in [*own.get("_parameters", {}).items(), *own.get("_buffers", {}).items()]:
            if id(value) in keeping:
                yield f"attribute `{name}` of a {type(module).__name__}"


def _names(keeping: Mapping[int, Any], within: str, depth: int) -> Iterator[str]:
    """Yield attributes, globals and closures that refer to one of the objects, directly or through containers."""
    referrers = gc.get_referrers(*keeping.values())
    for function, name in _closures([one for one in referrers if isinstance(one, CellType)]):
        yield f"{within}variable `{name}`, which {function} closes over"
    containers = {id(one): one for one in referrers if type(one) in (list, tuple, set)}
    dicts = [one for one in referrers if isinstance(one, dict) and one is not keeping]
    owners = _owners(dicts)
    for names in dicts:
        if id(names) in owners:
            yield from _attributes(owners[id(names)], names, keeping, within)
        else:
            containers[id(names)] = names
    for one in referrers:
        if hasattr(one, "__dict__") and id(vars(one)) not in owners:
            yield from _attributes(one, vars(one), keeping, within)
    del referrers, dicts, owners
    if containers and depth:
        yield from _names(containers, within or "something in ", depth - 1)


def _owners(dicts: list[dict[Any, Any]]) -> dict[int, Any]:
    """Return, by the id of a dict, the object whose attributes it holds or the function whose globals it holds."""
    ids = {id(one) for one in dicts}
    referrers = gc.get_referrers(*dicts) if dicts else []
    return {id(names): one for one in referrers if id(names := _namespace(one)) in ids}


def _namespace(one: Any) -> Any:
    return one.__globals__ if isinstance(one, FunctionType) else getattr(one, "__dict__", None)


def _attributes(owner: Any, names: Mapping[Any, Any], keeping: Mapping[int, Any], within: str) -> Iterator[str]:
    for name in [name for name, value in list(names.items()) if id(value) in keeping]:
        if isinstance(owner, nn.Module) and name in ("_parameters", "_buffers"):
            continue  # named already
        if isinstance(owner, FunctionType | ModuleType):
            yield f"{within}global variable `{name}`"
        else:
            yield f"{within}attribute `{name}` of a {type(owner).__name__}"


def _closures(cells: list[CellType]) -> Iterator[tuple[str, str]]:
    """Yield each function that closes over one of `cells`, with the name of the variable."""
    closures = [one for one in gc.get_referrers(*cells) if isinstance(one, tuple)] if cells else []
    for function in gc.get_referrers(*closures) if closures else ():
        if isinstance(function, FunctionType):
            names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            yield from ((function.__name__, name) for name, cell in names if any(cell is one for one in cells))
