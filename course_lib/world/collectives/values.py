"""The values of the small tensors of a call, before it and after it, which `run.replay()` shows, and checksums of all,
which `run.layout()` compares.

A world keeps them only with `replay=True`. They are kept as numbers: a kept tensor would keep its memory alive.
"""

import ctypes
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, isnan, nan
from typing import Any, NamedTuple, Self

import numpy
import torch

from ...meter import is_learners, outward, tensors_in, variables

MOST_NUMEL = 32  # the most elements that are kept of each side of a call
MOST_COUNT = 10**7  # a counter is below it
BEGINNING = 4096  # elements of each tensor in which a world without `replay=True` looks for NaN

_INFINITY = {  # its bits; those of a NaN are a larger number
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float32: 0x7F80_0000,
    torch.float64: 0x7FF0_0000_0000_0000,
}

Named = tuple[str, tuple[Any, ...]]
"""The variable of the learner's that holds a tensor (empty if none does), and the tensor's elements."""

NamedTensor = tuple[str, torch.Tensor]


class Summed(NamedTuple):
    """What is known of a tensor of any size."""

    name: str  # the variable of the learner's that holds it; empty if none does
    numel: int  # and no shape: FSDP flattens the shards that it sends
    checksum: int  # of its elements
    finite: bool  # no element is infinite or NaN
    uniform: bool  # every element is the same whole number: tensors of zeros are often equal by chance


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of one call of one rank."""

    before: tuple[Named, ...]  # the small tensors that the rank brought, as they were
    after: tuple[Named, ...] = ()  # the small tensors that received the result, if it has arrived
    around: tuple[Named, ...] = ()  # the other small tensors in variables of the learner's functions at the call
    counters: tuple[Named, ...] = ()  # the whole numbers in variables of the learner's functions at the call
    brought: tuple[Summed, ...] = ()  # checksums of what the rank brought
    received: tuple[Summed, ...] = ()  # checksums of the result, if it has arrived

    def with_received(self, tensors: list[NamedTensor]) -> Self:
        """Return the values with those of the result, which these tensors have received."""
        return replace(self, after=_read(tensors), received=summed(tensors))


def least_finite(op: str, is_root: bool, arguments: dict[str, Any], *, whole: bool) -> float:
    """Return NaN or infinity if a rank brings one to a call, else 0. `arguments` are those of a `c10d` operator. Only
    the beginning of each tensor is read, unless `whole`: the loss of a step makes NaN everywhere."""
    tensors = _side("input", _brings(op, is_root), arguments)
    found = [_least_finite(tensor, None if whole else BEGINNING) for tensor in tensors if _is_readable(tensor)]
    return nan if any(map(isnan, found)) else max(found, default=0.0)


def _least_finite(tensor: torch.Tensor, count: int | None) -> float:
    """Read the bits without the sign: the larger float has the larger bits."""
    if tensor.dtype not in _INFINITY or not tensor.numel():
        return 0.0
    width = tensor.itemsize
    bits = numpy.frombuffer(_memory(tensor), f"u{width}", -1 if count is None else min(count, tensor.numel()))
    above = int((bits & (1 << 8 * width - 1) - 1).max()) - _INFINITY[tensor.dtype]
    return nan if above > 0 else inf if above == 0 else 0.0


def values_of(op: str, is_root: bool, arguments: dict[str, Any]) -> Values:
    """Return the values before a call. `arguments` are those of a `c10d` operator."""
    brings = _brings(op, is_root)
    taking_part = {id(tensor) for tensor in tensors_in(list(arguments.values()))}
    tensors = _named("input", brings, arguments)
    around, counters = tuple(_around(taking_part)), tuple(_counters().items())
    return Values(before=_read(tensors), around=around, counters=counters, brought=summed(tensors))


def received(op: str, is_root: bool, arguments: dict[str, Any]) -> list[NamedTensor]:
    """Return the tensors in which a rank receives the result of a call."""
    return _named("output", op != "send" and (op != "reduce" or is_root), arguments)


def summed(tensors: list[NamedTensor]) -> tuple[Summed, ...]:
    """Return checksums of those `tensors` that can be read, without an operator: the meter does not notice."""
    return tuple(_summed(*one) for one in tensors if _is_readable(one[1]))


def _is_readable(tensor: torch.Tensor) -> bool:
    return _plain(tensor) and tensor.is_contiguous()


def _memory(tensor: torch.Tensor) -> Any:
    return _bytes(tensor.nbytes).from_address(tensor.data_ptr())


@lru_cache(maxsize=256)
def _bytes(count: int) -> Any:
    """Return a type of so many bytes: making it takes longer than reading them."""
    return ctypes.c_char * count


def _summed(name: str, tensor: torch.Tensor) -> Summed:
    memory = _memory(tensor)
    numbers = _numbers(memory, tensor.dtype) if tensor.numel() else numpy.empty(0)
    return Summed(
        name=name,
        numel=tensor.numel(),
        checksum=zlib.crc32(memory),
        finite=bool(numpy.isfinite(numbers).all()),
        uniform=len(numbers) > 0 and bool((numbers == numpy.rint(numbers[0])).all()),
    )


def _numbers(memory: Any, dtype: torch.dtype) -> Any:
    """Return the elements in `memory`; none of a dtype that NumPy does not know, such as float8."""
    if dtype is torch.bfloat16:  # the upper half of a float32
        return (numpy.frombuffer(memory, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    name = str(dtype).removeprefix("torch.")
    return numpy.frombuffer(memory, name) if hasattr(numpy, name) else numpy.empty(0)


def _read(tensors: list[NamedTensor]) -> tuple[Named, ...]:
    """Return the values of `tensors`, if they are small. `tolist` reads them without an operator."""
    small = _readable([tensor for _, tensor in tensors])
    return tuple((name, tuple(_flat(tensor.tolist()))) for name, tensor in tensors) if small else ()


def _brings(op: str, is_root: bool) -> bool:
    return op != "recv" and (op != "broadcast" or is_root)


def _side(side: str, in_place: bool, arguments: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors of the arguments named `input...` or `output...`, and of `tensors` if that is both sides."""
    sides = (side, "tensors") if in_place else (side,)
    return list(tensors_in([value for name, value in arguments.items() if name.startswith(sides)]))


def _named(side: str, in_place: bool, arguments: dict[str, Any]) -> list[NamedTensor]:
    tensors = _side(side, in_place, arguments)
    names: dict[int, str] = {}
    for name, items in _variables():
        for index, item in enumerate(items):
            names.setdefault(id(item), f"{name}[{index}]" if len(items) > 1 else name)
    if not all(id(tensor) in names for tensor in tensors):
        names = dict(_of_modules()) | names
    return [(names.get(id(tensor), ""), tensor) for tensor in tensors]


def _around(taking_part: set[int]) -> Iterator[Named]:
    seen: set[str] = set()
    for name, items in _variables():
        if name not in seen and _readable(items) and not taking_part.issuperset(map(id, items)):
            yield name, tuple(_flat([item.tolist() for item in items]))
        seen.add(name)


def _counters() -> dict[str, tuple[int]]:
    """Return the whole numbers by the name of their variable. Of equal names, the innermost function's counts."""
    found: dict[str, Any] = {}
    for name, value in _locals():
        found.setdefault(name, value)
    return {name: (value,) for name, value in found.items() if type(value) is int and abs(value) < MOST_COUNT}


def _readable(tensors: list[torch.Tensor]) -> bool:
    return all(map(_plain, tensors)) and 0 < sum(tensor.numel() for tensor in tensors) <= MOST_NUMEL


def _plain(tensor: torch.Tensor) -> bool:
    """Return whether the elements can be read: an engine may have freed the tensor's memory."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cpu:
        return False
    dense = tensor.layout is torch.strided and not tensor.is_quantized
    return dense and tensor.untyped_storage().nbytes() > 0


def _variables() -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield the variables of the learner's functions that hold a tensor or a list of tensors, innermost first."""
    for name, value in _locals():
        items = value if isinstance(value, list | tuple) else [value]
        if items and all(isinstance(item, torch.Tensor) for item in items):
            yield name, list(items)


def _of_modules() -> Iterator[tuple[int, str]]:
    """Yield the ids and names of the parameters and gradients of modules in variables of the learner's functions."""
    for name, value in _locals():
        for parameter, tensor in value.named_parameters(name) if isinstance(value, torch.nn.Module) else ():
            yield id(tensor), parameter
            if tensor.is_leaf and tensor.grad is not None:  # torch warns about any other tensor
                yield id(tensor.grad), f"{parameter}.grad"


def _locals() -> Iterator[tuple[str, Any]]:
    for frame in outward(sys._getframe(1)):
        if is_learners(frame.f_code):
            yield from variables(frame).items()


def _flat(nested: Any) -> Iterator[Any]:
    if not isinstance(nested, list):
        yield nested
    else:
        for item in nested:
            yield from _flat(item)
