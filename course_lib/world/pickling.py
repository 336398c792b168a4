"""Pickling: what goes to a rank (a function, its arguments and what they use) and what comes back.

Ranks share no memory, as processes do not: each works on its own copy. Ranks that are threads share locks.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import io
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

import cloudpickle
import torch

from ..errors import CourseError

FunctionCall = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its arguments and its keyword arguments."""

_SHARED = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Event,
    threading.Condition,
    threading.Semaphore,
    threading.Barrier,
    threading.Thread,
    queue.Queue,
    queue.SimpleQueue,
)
"""Types that cannot be copied. Threads share objects of these types."""

# cloudpickle copies the globals that a function reads. It misses globals that only a class body in the function reads,
# such as a decorator or a type annotation: Python reads these with different instructions.
cloudpickle.cloudpickle.GLOBAL_OPS += tuple(
    dis.opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)


# -- to a rank ---------------------------------------------------------------------------------------------------


def pack_call(*call: Any) -> bytes:
    """Return a function with its arguments as bytes, which `unpack_call` reads in any process.

    Functions and classes of a notebook travel with the variables that they read. Functions of imported modules travel
    by name.

    Raises:
        CourseError: the function uses something that cannot be copied. The message names it.
    """
    return _packed(call, lambda _: None)


def unpack_call(packed: bytes) -> FunctionCall:
    """Return a new copy of the function, its arguments and its keyword arguments."""
    call: FunctionCall = pickle.loads(packed)
    return call


def largest(*call: Any) -> tuple[str, int]:
    """Return the name and the size in bytes of the largest object that the function uses."""
    sizes = {label: len(_dump(value, lambda _: None)) for label, value in _used(*call).items()}
    return max(sizes.items(), key=lambda item: item[1], default=("the function itself", 0))


class Unpickler(pickle.Unpickler):
    """An unpickler of `Copies`, which finds shared objects by their positions."""

    def __init__(self, packed: bytes, shared: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(packed))
        self._shared = shared

    def persistent_load(self, position: int) -> Any:
        return self._shared[position]


class Copies:
    """A function with its arguments, packed once and unpacked for each rank of this process. The ranks share locks.

    Raises:
        CourseError: the function uses something that cannot be copied. The message names it.
    """

    def __init__(self, *call: Any) -> None:
        self._shared: list[Any] = []
        self._packed = _packed(call, self._share)

    def unpack(self, unpickler: type[Unpickler] = Unpickler) -> FunctionCall:
        """Return a new copy of the function, its arguments and its keyword arguments."""
        call: FunctionCall = unpickler(self._packed, self._shared).load()
        return call

    def _share(self, value: Any) -> int | None:
        if not isinstance(value, _SHARED):
            return None
        self._shared.append(value)
        return len(self._shared) - 1


_Share = Callable[[Any], int | None]


class _Pickler(cloudpickle.Pickler):
    def __init__(self, buffer: io.BytesIO, share: _Share) -> None:
        super().__init__(buffer)
        self._share = share

    def persistent_id(self, value: Any) -> int | None:
        return self._share(value)


def _packed(call: Any, share: _Share) -> bytes:
    try:
        return _dump(call, share)
    except Exception as error:
        raise CourseError(_why(call, error, share)) from None


def _dump(value: Any, share: _Share) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, share).dump(value)
    return buffer.getvalue()


def _submodules(code: CodeType, used: Iterable[Any]) -> list[Any]:
    """Return the imported submodules that `code` reaches through the packages among `used`.

    cloudpickle's own function reads all of `sys.modules` for each package: a millisecond once torch is loaded.
    """
    found = []
    packages = [value.__name__ for value in used if isinstance(value, ModuleType) and value.__package__]
    while packages:
        package = packages.pop()
        for name in {f"{package}.{name}" for name in code.co_names} & sys.modules.keys():
            packages.append(name)
            found.append(sys.modules[name])
    return found


cloudpickle.cloudpickle._find_imported_submodules = _submodules


def _why(call: Any, error: Exception, share: _Share) -> str:
    culprit = "something that it uses"
    for label, value in _used(*call).items():
        try:
            _dump(value, share)
        except Exception as culprits_error:
            culprit, error = f"{label}, a {type(value).__name__},", culprits_error
            break
    return (
        f"{getattr(call[0], '__name__', 'the function')}: {culprit} cannot be copied ({type(error).__name__}: {error})."
        " Each rank works on its own copy of the function and of what it uses, as separate processes do. "
        "Make that object inside the function, or leave it out."
    )


def _used(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    used = {f"argument {position}": value for position, value in enumerate(args, 1)}
    used |= {f"argument {name!r}": value for name, value in kwargs.items()}
    with contextlib.suppress(TypeError, ValueError):
        variables = inspect.getclosurevars(fn)
        used |= {f"variable {name!r}": value for name, value in {**variables.nonlocals, **variables.globals}.items()}
    return used


# -- from a rank -------------------------------------------------------------------------------------------------


class StayedBehind:
    """A placeholder for a return value that cannot leave its process, such as a model with its process groups.

    A function may return an object only to keep it alive for measuring. So only its use is an error.
    """

    def __init__(self, rank: int, type_name: str, why: str) -> None:
        self._details = rank, type_name, why

    def __repr__(self) -> str:
        return f"<a {self._details[1]}, which stayed in the process of rank {self._details[0]}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_details":  # pickle and copy look up such names, and expect this error
            raise AttributeError(name)
        rank, type_name, why = self._details
        raise CourseError(
            f"what rank {rank} returned, a {type_name}, stayed in its process ({why}), and has no .{name} here. "
            "Return numbers, tensors, or lists and dicts of them."
        )


class _ResultPickler(cloudpickle.Pickler):
    """A pickler whose tensors arrive on the CPU, without hooks and without memory that they do not use."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type in ("cpu", "cuda"):
            tensor = obj.detach().cpu()
            if tensor.untyped_storage().nbytes() > tensor.nbytes:
                tensor = tensor.clone()
            return tensor.requires_grad_(obj.requires_grad).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A packed return value.

    Attributes:
        type_name: name of its class.
        data: the pickled value; empty if it cannot be pickled.
        why: the reason, if it cannot be pickled.
    """

    type_name: str
    data: bytes = b""
    why: str = ""


def pack_result(value: Any) -> Packed:
    """Return `value`, packed for `unpack_result` in another process."""
    buffer, type_name = io.BytesIO(), type(value).__name__
    try:
        _ResultPickler(buffer).dump(value)
    except Exception as error:
        return Packed(type_name=type_name, why=f"{type(error).__name__}: {error}")
    return Packed(type_name=type_name, data=buffer.getvalue())


def unpack_result(rank: int, packed: Packed) -> Any:
    """Return what `rank` returned, or a `StayedBehind` if it could not be sent."""
    why = packed.why
    if packed.data:
        try:
            return pickle.loads(packed.data)
        except Exception as error:  # it can be unpickled only on a rank
            why = f"{type(error).__name__}: {error}"
    return StayedBehind(rank, packed.type_name, why)
