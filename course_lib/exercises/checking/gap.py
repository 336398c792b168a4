"""`Gap`: what was expected beside what was given, by rank; what the recognisers of causes look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .plain import Path, Plain, same


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Results that differ on at least one rank.

    Attributes:
        expected: what the reference gave, by rank.
        given: what the solution gave.
        before: what each rank was called with.
        tolerance: relative, for floating-point numbers.
        path: where in the whole result these stand; empty for the whole.
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
        """Expected and given, of each rank that differs."""
        return ((self.expected[rank], self.given[rank]) for rank in self.ranks)

    @property
    def alike(self) -> bool:
        """Whether all ranks should hold the same here, and do."""
        return all(self.same(by_rank[0], value) for by_rank in (self.expected, self.given) for value in by_rank)

    def same(self, expected: Plain, given: Plain) -> bool:
        return same(expected, given, self.tolerance)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What probably led to a gap, and one next step."""

    likely: str
    action: str


Recogniser = Callable[[Gap], Cause | None]
"""Knows one way to be wrong; None for every other."""
