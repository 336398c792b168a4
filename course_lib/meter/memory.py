"""The memory report of a rank: at the end, at each mark, at the peak, and over time."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .ledger.history import MemoryEvent
from .ledger.peak import Peak
from .optimizer_steps import OptimizerSteps


@dataclass(frozen=True, kw_only=True)
class StillHeld:
    """Memory that a parameter has given up, and that cannot be freed.

    Attributes:
        nbytes: its size.
        holders: the names of its references, such as "variable `old` in train (line 7)".
    """

    nbytes: int
    holders: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.nbytes:,} bytes that were a parameter's are still held by {'; '.join(self.holders)}"


@dataclass(frozen=True, kw_only=True)
class CudaMemory:
    """The figures of torch's CUDA allocator for this process. They include the temporary memory of CUDA kernels.

    Attributes:
        allocated_bytes, max_allocated_bytes: `torch.cuda.memory_allocated`, and the most since the run began.
    """

    allocated_bytes: int
    max_allocated_bytes: int

    @staticmethod
    def now() -> "CudaMemory | None":
        """Return the current figures, or None if this process does not use CUDA."""
        if not torch.cuda.is_initialized():
            return None
        return CudaMemory(
            allocated_bytes=torch.cuda.memory_allocated(),
            max_allocated_bytes=torch.cuda.max_memory_allocated(),
        )


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The memory of a rank at one moment.

    Attributes:
        seconds: the time from the start of the run.
        current_bytes: the bytes that the rank holds.
        peak_bytes: the most that it has held so far.
        by_category: `current_bytes`, by `CATEGORIES`.
        still_held: memory that parameters have given up, and that something else keeps.
        cuda: the figures of torch's CUDA allocator, if CUDA is in use.
    """

    seconds: float
    current_bytes: int
    peak_bytes: int
    by_category: Mapping[str, int]
    still_held: tuple[StillHeld, ...] = ()
    cuda: CudaMemory | None = None

    def __str__(self) -> str:
        lines = [f"{self.current_bytes:,} bytes held, {self.peak_bytes:,} at the peak so far"]
        lines += [f"  {category:<13} {nbytes:>18,} bytes" for category, nbytes in self.by_category.items()]
        lines += [f"  {held}" for held in self.still_held]
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True, kw_only=True)
class MemoryReport(Snapshot):
    """The memory of a rank: a `Snapshot` when its function returned, with its variables still alive, and the history.

    Attributes:
        rank: the rank.
        marks: the snapshots that `mark` took, by label; the last one of a label that was used again.
        marked: label and seconds of each call of `mark`, in order.
        at_peak: the memory at the peak; None if the rank never held anything.
        timeline: every change, in order. Here and at the peak, a tensor's category is its purpose over its whole life.
            In a snapshot, it is the purpose at that moment.
        optimizers: the steps of each optimizer.
    """

    rank: int
    marks: Mapping[str, Snapshot]
    marked: tuple[tuple[str, float], ...]
    at_peak: Peak | None
    timeline: tuple[MemoryEvent, ...]
    optimizers: tuple[OptimizerSteps, ...] = ()

    def __str__(self) -> str:
        return f"rank {self.rank}: {super().__str__()}"

    __repr__ = __str__
