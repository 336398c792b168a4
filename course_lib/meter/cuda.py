"""The memory of a rank's GPU, as torch's own CUDA allocator reports it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
