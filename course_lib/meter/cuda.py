"""The memory of a rank's GPU, as torch's own CUDA allocator reports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import CourseError


@dataclass(frozen=True, kw_only=True)
class CudaMemory:
    """The figures of torch's CUDA allocator for this process. They include the temporary memory of CUDA kernels.

    Attributes:
        allocated_bytes, max_allocated_bytes: `torch.cuda.memory_allocated`, and the most since the run began.
        reserved_bytes, max_reserved_bytes: `torch.cuda.memory_reserved`, likewise.
    """

    allocated_bytes: int
    max_allocated_bytes: int
    reserved_bytes: int
    max_reserved_bytes: int

    @staticmethod
    def now() -> CudaMemory | None:
        """Return the current figures, or None if this process does not use CUDA."""
        if not torch.cuda.is_initialized():
            return None
        return CudaMemory(
            allocated_bytes=torch.cuda.memory_allocated(),
            max_allocated_bytes=torch.cuda.max_memory_allocated(),
            reserved_bytes=torch.cuda.memory_reserved(),
            max_reserved_bytes=torch.cuda.max_memory_reserved(),
        )


@contextmanager
def cuda_snapshot(file: str | Path) -> Iterator[None]:
    """Record what the GPU's allocator does inside the block, each allocation with its lines, and write it to `file`.

    The snapshot is of the rank that calls it. Give each rank its own file, and record a few steps, not a whole training
    run. pytorch.org/memory_viz shows the file. It is written even if the block raises an exception.

    Raises:
        CourseError: this rank has no GPU.

    Example:
        >>> with cuda_snapshot(f"rank-{dist.get_rank()}.pickle"):
        ...     train_step()
    """
    if not torch.cuda.is_available():
        raise CourseError(
            f"cuda_snapshot({str(file)!r}): torch sees no GPU here, and only a GPU has an allocator to record. "
            "Run this on World(n, backend='nccl'); without a GPU, run.plot_memory() and run.memory[0].at_peak tell "
            "what was held."
        )
    torch.cuda.memory._record_memory_history()
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(str(file))
        torch.cuda.memory._record_memory_history(enabled=None)
