"""The rounding of torch's CUDA caching allocator, for a tensor that cannot reuse cached memory.

c10/cuda/CUDACachingAllocator.cpp: requests are rounded to 512 bytes. Up to 10 MiB they share segments, and a block is
split off. Above, the allocator makes a segment of whole 2 MiB for the request, and splits off the rest only if it is
more than 1 MiB.
"""

_ROUND = 512
_SEGMENT = 2 * 2**20
_LARGE = 10 * 2**20
_SPLIT = 2**20


def cuda_bytes(nbytes: int) -> int:
    """Return how much `torch.cuda.memory_allocated` grows for a tensor of `nbytes`."""
    block = -(-nbytes // _ROUND) * _ROUND
    if block < _LARGE:
        return block
    segment = -(-block // _SEGMENT) * _SEGMENT
    return block if segment - block > _SPLIT else segment
