"""What a rank held: at the end, at each mark, at the peak, and over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .cuda import CudaMemory
from .history import Change
from .peak import Peak


@dataclass(frozen=True, kw_only=True)
class StillHeld:
    """Memory that was a parameter's and is not any more, but cannot be freed.

    Attributes:
        nbytes: how much.
        holders: who holds it, such as "variable `old` in train (line 7)".
    """

    nbytes: int
    holders: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.nbytes:,} bytes that were a parameter's are still held by {'; '.join(self.holders)}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a rank holds at one moment.

    Attributes:
        seconds: from the start of the run.
        current_bytes: what it holds.
        peak_bytes: the most that it has held so far.
        by_category: `current_bytes`, by `CATEGORIES`.
        padding: how much of parameters, gradients and optimizer is in no tensor of them: what fills up shards.
        still_held: memory that parameters have given up, and that something else keeps.
        from_other_ranks: bytes that this rank uses and another has made, which count there; by that rank.
        cuda: what torch's CUDA allocator says, where CUDA is in use.
    """

    seconds: float
    current_bytes: int
    peak_bytes: int
    by_category: Mapping[str, int]
    padding: Mapping[str, int]
    still_held: tuple[StillHeld, ...] = ()
    from_other_ranks: Mapping[int, int] = field(default_factory=dict)
    cuda: CudaMemory | None = None

    def __str__(self) -> str:
        lines = [f"{self.current_bytes:,} bytes held, {self.peak_bytes:,} at the peak so far"]
        for category, nbytes in self.by_category.items():
            padding = f", {self.padding[category]:,} of them padding" if self.padding.get(category) else ""
            lines.append(f"  {category:<13} {nbytes:>18,} bytes{padding}")
        lines += [f"  {held}" for held in self.still_held]
        lines += [f"  {nbytes:,} bytes more are of rank {rank}" for rank, nbytes in self.from_other_ranks.items()]
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True, kw_only=True)
class MemoryEvent:
    """A change to what a rank holds; in a long run, early changes are told by the hundred.

    Attributes:
        seconds: from the start of the run.
        current_bytes: what it held afterwards.
        highest_bytes: the most that it held since the event before.
        operator: what made the block that came or went; of several, the one that came when the most was held.
        deltas: what came (above 0) or went (below 0), by category.
    """

    seconds: float
    current_bytes: int
    highest_bytes: int
    operator: str
    deltas: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class MemoryReport(Snapshot):
    """What a rank held: as a `Snapshot` of the moment when its function returned, before its variables went.

    Attributes:
        rank: which one.
        marks: the snapshots that `mark` took, by label.
        at_peak: what it held when it held the most; None if it never held anything.
        changes: the bare facts behind `timeline`.
    """

    rank: int
    marks: Mapping[str, Snapshot]
    at_peak: Peak | None
    changes: tuple[Change, ...] = field(repr=False)

    @cached_property
    def timeline(self) -> tuple[MemoryEvent, ...]:
        """Every change, in order. A tensor's category, here and at the peak, is what it was for in all its life;
        that of a snapshot is what it is for at that moment."""
        return tuple(
            MemoryEvent(
                seconds=seconds, current_bytes=current, highest_bytes=highest, operator=operator, deltas=dict(deltas)
            )
            for seconds, current, highest, operator, deltas in self.changes
        )

    def __str__(self) -> str:
        return f"rank {self.rank}: {super().__str__()}"

    __repr__ = __str__
