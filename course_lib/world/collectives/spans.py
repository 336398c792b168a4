"""The memory of tensors, as spans of bytes."""

from collections.abc import Iterable, Iterator

import torch

from ...meter import extent, storage_of

Span = tuple[int, int, int]
"""A storage, with the first byte of a tensor in it and the byte behind its last."""


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a strided tensor lie next to each other in memory, in any order."""
    if tensor.is_contiguous():
        return True
    first, end = extent(tensor)
    return end - first == tensor.nbytes


def spans(tensors: Iterable[torch.Tensor]) -> Iterator[Span]:
    """Yield the spans of those `tensors` that have memory, without gaps in it."""
    for tensor in tensors:
        storage = storage_of(tensor)
        if storage is not None and tensor.numel() and is_dense(tensor):
            yield storage._cdata, *extent(tensor)


def overlap(some: Iterable[Span], others: Iterable[Span]) -> bool:
    """Return whether any of `some` spans shares bytes with any of the `others`."""
    others = list(others)
    return any(one[0] == other[0] and one[1] < other[2] and other[1] < one[2] for one in some for other in others)
