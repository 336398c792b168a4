"""Each rank works on its own copy of a function and of all that it uses, as a process would."""

from __future__ import annotations

import contextlib
import inspect
import io
import pickle
import queue
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle

from ..errors import CourseError

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
"""What cannot be copied and is there to be shared between threads."""


class Copies:
    """A function with its arguments, packed once and unpacked for each rank.

    Functions and classes of a notebook travel with the variables that they read; functions of imported modules
    travel by name.

    Raises:
        CourseError: something that the function uses cannot be copied; the text names it.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._shared: list[Any] = []
        try:
            self._packed = self._pack((fn, args, kwargs))
        except Exception as error:
            raise CourseError(self._why(fn, args, kwargs, error)) from None

    def unpack(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """A new copy of function, arguments and keyword arguments."""
        unpickler = pickle.Unpickler(io.BytesIO(self._packed))
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        copy: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = unpickler.load()
        return copy

    def _pack(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        pickler = cloudpickle.Pickler(buffer)
        pickler.persistent_id = self._share
        pickler.dump(value)
        return buffer.getvalue()

    def _share(self, value: Any) -> int | None:
        if not isinstance(value, _SHARED):
            return None
        self._shared.append(value)
        return len(self._shared) - 1

    def _why(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> str:
        culprit = "something that it uses"
        for label, value in _used(fn, args, kwargs).items():
            try:
                self._pack(value)
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
