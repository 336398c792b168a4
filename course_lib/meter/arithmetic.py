"""Seeing arithmetic where Python asks for it, before it reaches torch's dispatcher.

An operator that `operators` sees gives up the GIL three times where it would once, and an update by a number, such as
`x *= 2.5`, once more, to convert the number. An optimizer's step is hundreds of small operators in a row, in which the
ranks of a kernel would mostly wait for each other. So the methods that such steps are written in have stand-ins:
torch's own is called with the key left out, and what it returns is told, as a kernel of `operators` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .operators import current, is_left_out, unseen


def stand_ins() -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """What stands in for methods of `Tensor`: owner, name and what stands in."""
    yield Tensor, "sqrt", _making(Tensor.sqrt, "sqrt")
    for operator, python in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "truediv")):
        for name in (operator, f"__{python}__"):
            yield Tensor, name, _making(getattr(Tensor, name), operator)
        for name in (f"{operator}_", f"__i{python}__"):
            yield Tensor, name, _updating(getattr(Tensor, name))


_NUMBERS = frozenset({int, float})
_PLAIN = frozenset({Tensor, Parameter})
_OPERANDS = _NUMBERS | _PLAIN


def _making(method: Callable[..., Any], operator: str) -> Callable[..., Any]:
    """A method that returns a new tensor."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        watcher = current()
        if watcher is None or type(args[-1]) not in _OPERANDS or not _is_seen(args[0]):
            return method(*args, **kwargs)
        result = unseen(method, args, kwargs)
        watcher.made(result, operator)
        return result

    return call


def _updating(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that changes a tensor; by a number, it makes nothing but that number anew."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current() is None or type(args[-1]) not in _NUMBERS or not _is_seen(args[0]):
            return method(*args, **kwargs)
        return unseen(method, args, kwargs)

    return call


def _is_seen(tensor: Tensor) -> bool:
    """Whether the calling thread is in sight, and only torch's own code is called for `tensor`: a subclass, or a mode
    of `torch.overrides`, could make whatever it likes."""
    return (
        type(tensor) in _PLAIN
        and not torch._C._is_torch_function_mode_enabled()  # before `layout`, of which a mode would be told
        and not is_left_out()
        and tensor.layout is torch.strided
    )
