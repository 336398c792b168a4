"""How torch's CUDA caching allocator rounds a tensor, where it has nothing cached to reuse.

c10/cuda/CUDACachingAllocator.cpp: requests are rounded to 512 bytes. Up to 10 MiB they share segments, and a block is
split off. Above, a segment of whole 2 MiB is made for the request, and what is left over is split off only when it is
more than 1 MiB.
"""

_ROUND = 512
_SEGMENT = 2 * 2**20
_LARGE = 10 * 2**20
_SPLIT = 2**20


def cuda_bytes(nbytes: int) -> int:
    """What `torch.cuda.memory_allocated` grows by for a tensor of `nbytes`."""
    block = -(-nbytes // _ROUND) * _ROUND
    if block < _LARGE:
        return block
    segment = -(-block // _SEGMENT) * _SEGMENT
    return block if segment - block > _SPLIT else segment
