"""Saved tensors of autograd that do not keep stage 3's gathered parameters in memory.

Autograd saves some of a layer's parameters until backward. One view of a flat_param would keep the whole gathered unit
in memory. So autograd saves the place of the view in the flat_param, and looks it up when the unit is gathered again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .buckets import FlatBucket
from .units import Unit


class Place(NamedTuple):
    """The place of a parameter, or of a view of it, in its bucket's flat_param."""

    unit: Unit
    bucket: FlatBucket
    size: Sequence[int]
    stride: Sequence[int]
    offset: int


def saves_no_parameters(running: Sequence[Unit]) -> saved_tensors_hooks:
    """Return a context in which autograd keeps no parameter of `running`, a list that changes as forward goes on."""

    def pack(tensor: Tensor) -> Any:
        for unit in running:
            for bucket in unit.buckets:
                whole = bucket.flat_param
                if whole is not None and tensor.untyped_storage() is whole.untyped_storage():
                    return Place(unit, bucket, tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        return tensor.detach(), tensor._version

    return saved_tensors_hooks(pack, _unpack)


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Place):
        packed.unit.ready()
        assert packed.bucket.flat_param is not None
        return packed.bucket.flat_param.as_strided(packed.size, packed.stride, packed.offset)
    tensor: Tensor
    tensor, version = packed
    if tensor._version != version:  # torch does not check tensors that a hook has packed
        raise RuntimeError(
            f"a {list(tensor.shape)} tensor that backward needs was modified in place after it had been used. "
            "Find the in-place operation (add_, relu_, x += ...) that changes it, and make it one that does not."
        )
    return tensor
