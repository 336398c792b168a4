"""Copies of a function and of all it uses, one for each rank: processes share no memory either."""

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
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from ..errors import CourseError
from .torch_hooks.patching import SharedContext, replaced

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


def pack(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a function with its arguments as bytes, which `unpack` reads in any process.

    Functions and classes of a notebook travel with the variables that they read. Functions of imported modules travel
    by name.

    Raises:
        CourseError: the function uses something that cannot be copied. The message names it.
    """
    return _packed(fn, args, kwargs, share=lambda _: None)


def unpack(packed: bytes, shared: Sequence[Any] = ()) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return a new copy of the function, its arguments and its keyword arguments."""
    copy: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = _Unpickler(packed, shared).load()
    return copy


def largest(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int]:
    """Return the name and the size in bytes of the largest object that `fn` uses."""
    sizes = {label: len(_dump(value, lambda _: None)) for label, value in _used(fn, args, kwargs).items()}
    return max(sizes.items(), key=lambda item: item[1], default=("the function itself", 0))


class Copies:
    """A function with its arguments, packed once and unpacked for each rank of this process. The ranks share locks.

    Raises:
        CourseError: the function uses something that cannot be copied. The message names it.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._shared: list[Any] = []
        self._packed = _packed(fn, args, kwargs, self._share)

    def unpack(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return a new copy of the function, its arguments and its keyword arguments."""
        return unpack(self._packed, self._shared)

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


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, shared: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(packed))
        self._shared = shared

    def persistent_load(self, position: int) -> Any:
        return self._shared[position]


def _packed(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], share: _Share) -> bytes:
    try:
        return _dump((fn, args, kwargs), share)
    except Exception as error:
        raise CourseError(_why(fn, args, kwargs, error, share)) from None


def _dump(value: Any, share: _Share) -> bytes:
    buffer = io.BytesIO()
    with _quick_submodules.in_use():
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


_quick_submodules = SharedContext(
    lambda: replaced([(cloudpickle.cloudpickle, "_find_imported_submodules", _submodules)])
)


def _why(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, share: _Share) -> str:
    culprit = "something that it uses"
    for label, value in _used(fn, args, kwargs).items():
        try:
            _dump(value, share)
        except Exception as culprits_error:
            culprit, error = f"{label}, a {type(value).__name__},", culprits_error
            break
    return (
        f"{getattr(fn, '__name__', 'the function')}: {culprit} cannot be copied ({type(error).__name__}: {error}). "
        "Each rank works on its own copy of the function and of what it uses, as separate processes do. "
        "Make that object inside the function, or leave it out."
    )


def _used(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    used = {f"argument {position}": value for position, value in enumerate(args, 1)}
    used |= {f"argument {name!r}": value for name, value in kwargs.items()}
    with contextlib.suppress(TypeError, ValueError):
        variables = inspect.getclosurevars(fn)
        used |= {f"variable {name!r}": value for name, value in {**variables.nonlocals, **variables.globals}.items()}
    return used
