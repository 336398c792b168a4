"""How many bytes an allocator hands out for a tensor, which is seldom the number that was asked for."""

from __future__ import annotations

from collections.abc import Callable

BLOCK_BYTES = 512
"""CUDA's caching allocator rounds every request up to a multiple of this (`kMinBlockSize`)."""

SEGMENT_BYTES = 2 * 2**20
"""For a large request it gets memory from the driver in multiples of this (`kRoundLarge`) ..."""

LARGE_BYTES = 10 * 2**20
"""... from this size on (`kMinLargeAlloc`)."""

SPLIT_BYTES = 2**20
"""What is left of a segment becomes a free block if it is larger than this (`kSmallSize`); else the tensor has it."""


def exact(nbytes: int) -> int:
    """Just what was asked for."""
    return nbytes


def cuda(nbytes: int) -> int:
    """What `torch.cuda.memory_allocated` grows by, for a tensor that gets fresh memory.

    A freed block that is used again may have been cut otherwise, which moves a large tensor by less than 1 MiB.
    Source: `round_size`, `get_allocation_size` and `should_split` in torch's c10/cuda/CUDACachingAllocator.cpp.
    """
    block = _round_up(nbytes, BLOCK_BYTES)
    if block < LARGE_BYTES:  # cut from a segment of 2 or 20 MiB that it shares with others
        return block
    segment = _round_up(block, SEGMENT_BYTES)
    return block if segment - block > SPLIT_BYTES else segment


def _round_up(nbytes: int, of: int) -> int:
    return -(-nbytes // of) * of


ALLOCATORS: dict[str | None, Callable[[int], int]] = {None: exact, "cuda": cuda}
"""By the name that `World(allocator=...)` takes."""
