"""`Gap`: expected and given results by rank, for the functions that recognise causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .plain import Path, Plain, same


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
        return all(self.same(by_rank[0], value) for by_rank in (self.expected, self.given) for value in by_rank)

    @property
    def decided(self) -> bool:
        """Whether the results are counts, truth values or words, which equal another rank's or a multiple by chance."""
        return all(isinstance(expected, bool | int | str) for expected in self.expected)

    def same(self, expected: Plain, given: Plain) -> bool:
        return same(expected, given, self.tolerance)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The probable cause of a gap, and one next step."""

    likely: str
    action: str


Recogniser = Callable[[Gap], Cause | None]
"""Recognises one kind of wrong result; None for every other."""
