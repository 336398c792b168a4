"""Plain data: a solution's results, converted by the check itself, so that no object can influence its own verdict.

`plain` turns a value into None, bools, numbers, strings, `Array`, tuples and dicts of them. Everything else becomes an
`Opaque`. It calls no methods of objects: a `list` that lies about its length, or an `__eq__` that is always true, has
no effect.

The functions that compare take the relative tolerance for floating-point numbers. A `Gap` holds the results of all
ranks, expected and given, for the functions that recognise causes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

Plain = Any
"""None, bool, int, float, str, `Array`, `Opaque`, or tuples and dicts of them."""

Path = tuple[Any, ...]
"""The indices and keys that lead from a value to a part of it."""


@dataclass(frozen=True, kw_only=True)
class Array:
    """A tensor: dtype (`float32`), shape, and its numbers in row-major order."""

    dtype: str
    shape: tuple[int, ...]
    numbers: tuple[float, ...]

    def __str__(self) -> str:
        return f"{'an' if self.dtype.startswith('int') else 'a'} {self.dtype} tensor of shape {list(self.shape)}"


@dataclass(frozen=True, kw_only=True)
class Opaque:
    """A value that a check cannot inspect, such as a generator or a tensor's subclass."""

    type_name: str

    def __str__(self) -> str:
        return f"{'an' if self.type_name[0] in 'AEIOUaeiou' else 'a'} {self.type_name}"


HUGE = Opaque(type_name="whole number of more than 300 digits")
"""An int beyond the range of floats: Python converts none of them to a float, and the longest not to text."""

_DEEPEST = 20
_detach, _reshape, _to_list = torch.Tensor.detach, torch.Tensor.reshape, torch.Tensor.tolist


def plain(value: Any, depth: int = 0) -> Plain:
    """Return a copy of `value` as plain data; a list becomes a tuple, a number of numpy and a Fraction a number."""
    kind = type(value)  # not isinstance, which trusts an object's `__class__`
    if issubclass(kind, np.generic):
        value = np.generic.item(value)
        kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is Fraction:
        return HUGE if abs(value) > sys.float_info.max else float(value)
    if issubclass(kind, int) and abs(int.__pos__(value)) > sys.float_info.max:
        return HUGE
    for scalar, copy in ((int, int.__pos__), (float, float.__pos__), (str, str.__str__)):
        if issubclass(kind, scalar):
            return copy(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _array(value)
    if issubclass(kind, torch.Tensor) and _is_of_torch(kind):
        tensor = torch.clone(value)
        return _array(tensor) if type(tensor) is torch.Tensor else Opaque(type_name=kind.__name__)
    if kind is torch.dtype:
        return str(value)
    if depth < _DEEPEST:
        for sequence in (list, tuple):
            if issubclass(kind, sequence):
                return tuple(plain(item, depth + 1) for item in sequence.__iter__(value))
        if issubclass(kind, dict):
            return {plain(key, depth + 1): plain(item, depth + 1) for key, item in dict.items(value)}
    return Opaque(type_name=kind.__name__)


def _is_of_torch(kind: type) -> bool:
    """Return whether torch itself defines `kind`, such as the result of a functional collective, which becomes a plain
    tensor when it is used."""
    name = kind.__module__
    return name.startswith("torch.") and getattr(sys.modules.get(name), kind.__name__, None) is kind


def _array(tensor: torch.Tensor) -> Array | Opaque:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return Opaque(type_name="tensor without numbers")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Array(dtype=dtype, shape=tuple(tensor.shape), numbers=tuple(_to_list(_reshape(_detach(tensor), (-1,)))))


def same(expected: Plain, given: Plain, tolerance: float) -> bool:
    """Return whether `given` equals `expected`, up to rounding. NaN equals NaN; dtypes and shapes count."""
    return difference(expected, given, tolerance) is None


def difference(expected: Plain, given: Plain, tolerance: float) -> Path | None:
    """Return the path to the first difference, in the order of `expected`, or None if there is none."""
    alike = isinstance(expected, tuple | dict) and type(expected) is type(given)
    if alike and set(_keys(expected)) == set(_keys(given)):
        for key in _keys(expected):
            rest = difference(expected[key], given[key], tolerance)
            if rest is not None:
                return (key, *rest)
        return None
    return None if _leaves_same(expected, given, tolerance) else ()


def at(value: Plain, path: Path) -> Plain:
    """Return the part of `value` at `path`; None if there is none."""
    try:
        for key in path:
            value = value[key]
    except (LookupError, TypeError):
        return None
    return value


def numbers(value: Plain) -> tuple[float, ...] | None:
    """Return every number in `value`, in order; None if it contains anything else."""
    if isinstance(value, Array):
        return value.numbers
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, tuple):
        parts = [numbers(item) for item in value]
        return None if None in parts else tuple(number for part in parts if part is not None for number in part)
    return None


def leaves(value: Plain) -> Iterator[Plain]:
    """Yield `value`, and everything in it that is in a tuple or a dict."""
    yield value
    if isinstance(value, tuple | dict):
        for key in _keys(value):
            yield from leaves(value[key])


def close(expected: tuple[float, ...], given: tuple[float, ...], tolerance: float) -> bool:
    """Return whether the numbers agree one by one.

    Cancellation leaves rounding errors that are large compared with the small result. So a difference of a tenth of the
    tolerance is accepted; less if all expected numbers are small.
    """
    if len(expected) != len(given):
        return False
    sizes = [abs(number) for number in expected if math.isfinite(number)]
    absolute = tolerance / 10 * min(1.0, max(sizes, default=0.0) if len(expected) > 1 else 1.0)
    return all(
        e == g or (math.isnan(e) and math.isnan(g)) or abs(g - e) <= tolerance * abs(e) + absolute < math.inf
        for e, g in zip(expected, given, strict=True)
    )


def _keys(value: tuple[Plain, ...] | dict[Plain, Plain]) -> list[Plain]:
    return list(value) if isinstance(value, dict) else list(range(len(value)))


def _leaves_same(expected: Plain, given: Plain, tolerance: float) -> bool:
    if isinstance(expected, Array) and isinstance(given, Array):
        alike = (expected.dtype, expected.shape) == (given.dtype, given.shape)
        exact = 0.0 if "float" not in expected.dtype else tolerance
        return alike and close(expected.numbers, given.numbers, exact)
    if type(expected) in (int, float) and type(given) in (int, float):
        exact = 0.0 if type(expected) is type(given) is int else tolerance
        return close((expected,), (given,), exact)
    return type(expected) is type(given) and bool(expected == given)


# -- what differs between ranks ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Results that differ on at least one rank.

    Attributes:
        expected: the reference's results, by rank.
        given: the solution's results.
        before: the arguments of each rank.
        tolerance: relative, for floating-point numbers.
        path: their position in the whole result; empty for the whole.
    """

    expected: tuple[Plain, ...]
    given: tuple[Plain, ...]
    before: tuple[Plain, ...]
    tolerance: float
    path: Path = ()

    @property
    def world_size(self) -> int:
        return len(self.expected)

    @property
    def ranks(self) -> list[int]:
        """The ranks that differ."""
        return [rank for rank in range(self.world_size) if not self.same(self.expected[rank], self.given[rank])]

    @property
    def pairs(self) -> Iterator[tuple[Plain, Plain]]:
        """The expected and the given result of each rank that differs."""
        return ((self.expected[rank], self.given[rank]) for rank in self.ranks)

    @property
    def alike(self) -> bool:
        """Whether all ranks should have the same result here, and do."""
        return self.agreed(self.expected) and self.agreed(self.given)

    @property
    def decided(self) -> bool:
        """Whether the results are counts, truth values or words, which equal another rank's or a multiple by chance."""
        return all(
            isinstance(one, bool | int | str) or (isinstance(one, Array) and one.dtype == "bool")
            for one in self.expected
        )

    def same(self, expected: Plain, given: Plain) -> bool:
        return same(expected, given, self.tolerance)

    def agreed(self, values: tuple[Plain, ...]) -> bool:
        """Return whether all ranks hold the same. Losses of different data may agree within the tolerance."""
        return all(same(values[0], value, min(self.tolerance, 1e-6)) for value in values)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The probable cause of a gap, and one next step."""

    likely: str
    action: str


Recogniser = Callable[[Gap], Cause | None]
"""Recognises one kind of wrong result; None for every other."""
