"""The values of the small tensors of a call, before it and after it: what `run.replay()` shows.

A world keeps them only with `replay=True`. They are kept as numbers: a kept tensor would keep its memory alive.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...meter import tensors_in
from ..learner_code import is_learners

MOST_NUMEL = 32
"""The most elements that are kept of each side of a call."""

Named = tuple[str, tuple[Any, ...]]
"""The variable of the learner's that holds a tensor (empty if none does), and the tensor's elements."""

NamedTensor = tuple[str, torch.Tensor]


@dataclass(kw_only=True)
class Values:
    """The values of one call of one rank.

    Attributes:
        before: the tensors that the rank brought, as they were.
        after: the tensors that received the result, if it has arrived.
        around: the other tensors in variables of the learner's functions, when the rank made the call.
    """

    before: tuple[Named, ...]
    after: tuple[Named, ...] = ()
    around: tuple[Named, ...] = ()


def values_of(op: str, is_root: bool, arguments: dict[str, Any]) -> Values:
    """Return the values before a call. `arguments` are those of a `c10d` operator."""
    brings = op != "recv" and (op != "broadcast" or is_root)
    taking_part = {id(tensor) for tensor in tensors_in(list(arguments.values()))}
    return Values(before=read(_small("input", brings, arguments)), around=tuple(_around(taking_part)))


def received(op: str, is_root: bool, arguments: dict[str, Any]) -> list[NamedTensor]:
    """Return the small tensors in which a rank receives the result of a call."""
    return _small("output", op != "send" and (op != "reduce" or is_root), arguments)


def read(tensors: list[NamedTensor]) -> tuple[Named, ...]:
    """Return the values of `tensors`. `tolist` reads them without an operator: the meter does not notice."""
    return tuple((name, tuple(_flat(tensor.tolist()))) for name, tensor in tensors)


def _small(side: str, in_place: bool, arguments: dict[str, Any]) -> list[NamedTensor]:
    """Return the tensors of the arguments named `input...` or `output...`, and of `tensors` if that is both sides."""
    sides = (side, "tensors") if in_place else (side,)
    tensors = list(tensors_in([value for name, value in arguments.items() if name.startswith(sides)]))
    if not _readable(tensors):
        return []
    names: dict[int, str] = {}
    for name, items in _variables():
        for index, item in enumerate(items):
            names.setdefault(id(item), f"{name}[{index}]" if len(items) > 1 else name)
    return [(names.get(id(tensor), ""), tensor) for tensor in tensors]


def _around(taking_part: set[int]) -> Iterator[Named]:
    seen: set[str] = set()
    for name, items in _variables():
        if name not in seen and _readable(items) and not taking_part.issuperset(map(id, items)):
            yield name, tuple(_flat([item.tolist() for item in items]))
        seen.add(name)


def _readable(tensors: list[torch.Tensor]) -> bool:
    return all(map(_plain, tensors)) and 0 < sum(tensor.numel() for tensor in tensors) <= MOST_NUMEL


def _plain(tensor: torch.Tensor) -> bool:
    """Return whether the elements can be read: an engine may have freed the tensor's memory."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return False
    dense = tensor.layout is torch.strided and not tensor.is_quantized
    return dense and tensor.untyped_storage().nbytes() > 0


def _variables() -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield the variables of the learner's functions that hold a tensor or a list of tensors, innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        for name, value in dict(frame.f_locals).items() if is_learners(frame.f_code) else ():
            items = value if isinstance(value, list | tuple) else [value]
            if items and all(isinstance(item, torch.Tensor) for item in items):
                yield name, list(items)
        frame = frame.f_back


def _flat(nested: Any) -> Iterator[Any]:
    if not isinstance(nested, list):
        yield nested
    else:
        for item in nested:
            yield from _flat(item)
