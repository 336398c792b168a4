"""What autograd keeps for backward: notes of where parameters are, not the parameters, which stage 3 is to free.

Autograd keeps some of a layer's parameters until backward, and with one view of a flat_param it would keep all of a
gathered unit in memory. So it is given a note in their place, of where in the flat_param to find them when the unit
has been gathered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .flat import ShardedBucket
from .units import Unit


class Place(NamedTuple):
    """Where a parameter, or a view of it, is to be found when its unit has been gathered again."""

    unit: Unit
    bucket: ShardedBucket
    size: Sequence[int]
    stride: Sequence[int]
    offset: int


def notes_of_parameters(running: Sequence[Unit]) -> saved_tensors_hooks:
    """Within this, autograd keeps no parameter of the units in `running`, a list that changes as forward goes on."""

    def pack(tensor: Tensor) -> Any:
        for unit in running:
            bucket = unit.bucket_of(tensor)
            if bucket is not None:
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
    if tensor._version != version:  # torch itself does not look, where tensors are packed
        raise RuntimeError(
            f"a {list(tensor.shape)} tensor that backward needs was modified in place after it had been used. "
            "Find the in-place operation (add_, relu_, x += ...) that changes it, and make it one that does not."
        )
    return tensor
