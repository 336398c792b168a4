"""Watch arithmetic at the Python methods, before it reaches torch's dispatcher, so that ranks wait less.

An operator that `operators` watches releases the GIL three times instead of once. An update by a number, such as
`x *= 2.5`, releases it once more, to convert the number. An optimizer's step is hundreds of small operators in a row,
so the ranks of a kernel would mostly wait for each other. Therefore the methods that such steps use are replaced: the
replacement calls torch's method with the dispatch key excluded and reports the result, as a kernel of `operators` does.

Without it, the measured step of `benchmarks/meter.py` (DDP and AdamW, 4 ranks, a quiet machine) took 8 % longer with
32 sequences and 13 % longer with 12. CPU time does not show that: it grew by 2 to 4 % there, and not at all for Stage2.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..tensors.storages import ORDINARY
from .operators import current, is_left_out, unseen


def arithmetic_stand_ins() -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Yield replacements for methods of `Tensor`: owner, name, replacement."""
    yield Tensor, "sqrt", _making(Tensor.sqrt, "sqrt")
    for operator, python in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "truediv")):
        for name in (operator, f"__{python}__"):
            yield Tensor, name, _making(getattr(Tensor, name), operator)
        for name in (f"{operator}_", f"__i{python}__"):
            yield Tensor, name, _updating(getattr(Tensor, name))


_NUMBERS = frozenset({int, float})
_OPERANDS = _NUMBERS | ORDINARY


def _making(method: Callable[..., Any], operator: str) -> Callable[..., Any]:
    """Wrap a method that returns a new tensor."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        watcher = current()
        if watcher is None or type(args[-1]) not in _OPERANDS or not _is_seen(args[0]):
            return method(*args, **kwargs)
        result = unseen(method, args, kwargs)
        watcher.made(result, operator, args)
        return result

    return call


def _updating(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that changes a tensor. If the operand is a number, the method allocates nothing but that number."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current() is None or type(args[-1]) not in _NUMBERS or not _is_seen(args[0]):
            return method(*args, **kwargs)
        return unseen(method, args, kwargs)

    return call


def _is_seen(tensor: Tensor) -> bool:
    """Return whether the calling thread is watched and `tensor` runs only torch's own code.

    A subclass, or a mode of `torch.overrides`, could run any code.
    """
    return (
        type(tensor) in ORDINARY
        and not torch._C._is_torch_function_mode_enabled()  # before `layout`, which a mode would intercept
        and not is_left_out()
        and tensor.layout is torch.strided
    )
