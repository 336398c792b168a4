"""The bytes that an allocator uses for a tensor, which are often more than were requested."""

from collections.abc import Callable

# The constants of CUDA's caching allocator, with its names for them.
BLOCK_BYTES = 512  # every request is rounded up to a multiple of this: kMinBlockSize
SEGMENT_BYTES = 2 * 2**20  # for a large request, the driver provides multiples of this: kRoundLarge
LARGE_BYTES = 10 * 2**20  # a request is large from this size on: kMinLargeAlloc
SPLIT_BYTES = 2**20  # the rest of a segment is a free block if it is larger; if not, the tensor keeps it: kSmallSize


def exact(nbytes: int) -> int:
    return nbytes


def cuda(nbytes: int) -> int:
    """Return how much `torch.cuda.memory_allocated` grows for a tensor that gets fresh memory.

    A reused block may have been cut to a different size, which changes a large tensor by less than 1 MiB.
    Source: `round_size`, `get_allocation_size` and `should_split` in torch's c10/cuda/CUDACachingAllocator.cpp.
    """
    block = _round_up(nbytes, BLOCK_BYTES)
    if block < LARGE_BYTES:  # cut from a shared segment of 2 or 20 MiB
        return block
    segment = _round_up(block, SEGMENT_BYTES)
    return block if segment - block > SPLIT_BYTES else segment


def _round_up(nbytes: int, of: int) -> int:
    return -(-nbytes // of) * of


ALLOCATORS: dict[str | None, Callable[[int], int]] = {None: exact, "cuda": cuda}
"""Size functions by the name that `World(allocator=...)` takes."""
