"""Calls on their way to a rank: a function, its arguments, and what they use."""

import contextlib
import inspect
import pickle
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ...errors import CourseError
from ..torch_hooks import private
from .pickler import pickled

FunctionCall = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its arguments and its keyword arguments."""


def check_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call that must fail, before any rank starts."""
    name = getattr(fn, "__name__", type(fn).__name__)
    if not callable(fn):
        raise CourseError(
            f"World.run was given {shortened(fn, 60)}, a {type(fn).__name__}, and needs a function to call on every "
            "rank. Pass the function itself, without parentheses: world.run(step), not world.run(step())."
        )
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise CourseError(
            f"World.run was given {name}, whose body would not run when it is called (it is a coroutine or a "
            "generator). Make it a plain function: no async, no yield."
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CourseError(
            f"World.run cannot call {name}{signature} with these arguments: {error}. Give them after the function, as "
            f"in world.run({name}, 1, 2). A rank's own number is not among them: ask dist.get_rank()."
        ) from None


def shortened(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def pack_call(*call: Any) -> bytes:
    """Return a function with its arguments as bytes, of which `unpack_call` makes a copy for a rank.

    Functions and classes of a notebook travel with the variables that they read. Functions of imported modules travel
    by name.

    Raises:
        CourseError: the function uses something that cannot be copied. The message names it.
    """
    try:
        return pickled(call)
    except Exception as error:
        raise CourseError(_why(call, error)) from None


def unpack_call(packed: bytes) -> FunctionCall:
    call: FunctionCall = pickle.loads(packed)
    return call


def main_with(made: Sequence[Any], variables: dict[str, Any]) -> ModuleType:
    """Return a new `__main__` with these variables, and with the classes and functions of the notebook among `made`."""
    main = ModuleType("__main__")
    vars(main).update(variables)
    for one in reversed(made):  # of a decorated function, the outer one comes first, and counts
        if one.__module__ == "__main__":
            setattr(main, one.__qualname__, one)  # the name of a method has a dot, and finds nothing
    return main


def _why(call: Any, error: Exception) -> str:
    culprit, advice = "something that it uses", "Make that object inside the function, or leave it out."
    for label, value in _used(*call).items():
        try:
            pickled(value)
        except Exception as culprits_error:
            culprit, error = f"{label}, a {type(value).__name__},", culprits_error
            if isinstance(value, private.CustomOpDef):  # simulated ranks may not define it
                advice = "Define that operator in a file, and import it."
            break
    return (
        f"{getattr(call[0], '__name__', 'the function')}: {culprit} cannot be copied ({type(error).__name__}: {error})."
        f" Each rank works on its own copy of the function and of what it uses, as separate processes do. {advice}"
    )


def _used(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    used = {f"argument {position}": value for position, value in enumerate(args, 1)}
    used |= {f"argument {name!r}": value for name, value in kwargs.items()}
    with contextlib.suppress(TypeError, ValueError):
        variables = inspect.getclosurevars(fn)
        used |= {f"variable {name!r}": value for name, value in {**variables.nonlocals, **variables.globals}.items()}
    return used
