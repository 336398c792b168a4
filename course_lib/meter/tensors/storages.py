"""The storages behind a tensor, for ordinary tensors, sparse tensors and wrappers such as DTensor."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

ORDINARY = frozenset({Tensor, Parameter})
"""The types of tensors that are not wrappers."""


def plain(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the ordinary tensors behind `tensor`: itself, the local part of a DTensor, indices and values of a sparse
    tensor."""
    if type(tensor) in ORDINARY:
        if tensor.is_nested:
            yield tensor.values()
        elif tensor.layout is torch.strided:
            yield tensor
        elif tensor.layout is torch.sparse_coo:
            yield from (tensor._indices(), tensor._values())
    elif hasattr(tensor, "__tensor_flatten__"):
        for part in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
            if isinstance(part, Tensor):  # and not a DTensor's mesh
                yield from plain(part)
    else:
        yield tensor


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a plain tensor, or None if it has no memory."""
    if tensor.is_meta:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):  # such as in torch.func.vmap, or not initialized yet
        return None


Span = tuple[int, int, int]
"""A storage, with the first byte of a tensor in it and the byte behind its last."""


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of a strided tensor in its storage, and the byte behind its last."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    reach = 1 + sum((size - 1) * stride for size, stride in sizes) if tensor.numel() else 0
    start = int(tensor.storage_offset())
    return start * tensor.itemsize, (start + reach) * tensor.itemsize


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements of a strided tensor lie next to each other in memory, in any order."""
    if tensor.is_contiguous():
        return True
    first, end = extent(tensor)
    return end - first == tensor.nbytes


def spans(tensors: Iterable[Tensor]) -> Iterator[Span]:
    """Yield the spans of those `tensors` that have memory, without gaps in it."""
    for tensor in tensors:
        storage = storage_of(tensor)
        if storage is not None and tensor.numel() and is_dense(tensor):
            yield storage._cdata, *extent(tensor)


def overlap(some: Iterable[Span], others: Iterable[Span]) -> bool:
    """Return whether any of `some` spans shares bytes with any of the `others`."""
    others = list(others)
    return any(one[0] == other[0] and one[1] < other[2] and other[1] < one[2] for one in some for other in others)


_CONTAINERS = (list, tuple, Mapping)
_LEAVES = frozenset({int, float, bool, str, type(None), torch.ScriptObject})  # frequent; to ask for a Mapping is slow


def tensors_in(value: Any, containers: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """Yield every tensor in `value` and in its nested lists, tuples and mappings; `containers` are those around it."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _CONTAINERS) and id(value) not in containers:  # a list may contain itself
        containers = (*containers, id(value))
        for item in list(value.values()) if isinstance(value, Mapping) else value:
            if isinstance(item, Tensor):  # as above, without one more generator
                yield item
            elif type(item) not in _LEAVES:
                yield from tensors_in(item, containers)
