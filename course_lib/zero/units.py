"""A unit of stage 3: parameters that are gathered together, used, and freed.

    flat_param     [padded_numel] there from `gather` to `free`; the parameters are views of it while the unit is
                   ready, and empty otherwise
    param_shard    [shard_numel] this rank's part, always there: see flat.py

What else holds a view of flat_param (a closure, autograd) holds all of it in memory, freed or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from .flat import ShardedBucket, in_buckets


class Unit:
    """Some parameters, of which this rank keeps a shard and gathers the rest when they are needed.

    Args:
        params: of any kinds.
        trainable: those among them that are trained; the others are gathered alike, and never reduced.
        process_group: the ranks that share them.

    Attributes:
        buckets: the trainable ones, a bucket for each dtype.
        frozen: the others.
    """

    def __init__(self, params: Iterable[Parameter], trainable: set[Parameter], process_group: Any) -> None:
        self._group = process_group
        params = list(params)
        self.buckets = list(self._cut([param for param in params if param in trainable]))
        self.frozen = list(self._cut([param for param in params if param not in trainable], frozen=True))
        self._gathers: list[Any] = []
        self.free()

    def _cut(self, params: Sequence[Parameter], *, frozen: bool = False) -> Iterator[ShardedBucket]:
        rank, world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        for bucket in in_buckets(params, bucket_bytes=math.inf):
            yield ShardedBucket(bucket, rank, world_size, copy=True, frozen=frozen)

    def gather(self) -> None:
        """Begin to bring in the parameters; they are there when `ready` returns."""
        for bucket in (*self.buckets, *self.frozen):
            if bucket.flat_param is None:
                flat_param = torch.empty(bucket.padded_numel, dtype=bucket.dtype, device=bucket.device)
                bucket.flat_param = bucket.marked(flat_param)
                shard = bucket.param_shard.to(bucket.dtype)
                work = dist.all_gather_single(bucket.flat_param, shard, group=self._group, async_op=True)
                self._gathers.append((bucket, work))

    def ready(self) -> None:
        """Have the parameters in the model; gather them if that has not begun."""
        self.gather()
        for bucket, work in self._gathers:
            work.wait()
            bucket.show_params(bucket.flat_param)
        self._gathers.clear()

    def free(self) -> None:
        """Keep nothing but the shards."""
        for _, work in self._gathers:
            work.wait()  # nobody needed them, but they are being written
        self._gathers.clear()
        for bucket in (*self.buckets, *self.frozen):
            if bucket.flat_param is not None:
                bucket.flat_param = None
                for param in bucket.params:
                    param.data = param.data.new_empty(0)

    def keep(self) -> None:
        """Take this rank's shards from the parameters, which something has written to while they were ready."""
        for bucket in (*self.buckets, *self.frozen):
            assert bucket.flat_param is not None
            bucket.param_shard.copy_(bucket.flat_param[bucket.shard])

    def bucket_of(self, tensor: Tensor) -> ShardedBucket | None:
        """The bucket whose parameter, or a view of it, `tensor` is."""
        for bucket in (*self.buckets, *self.frozen):
            if bucket.flat_param is not None and tensor.untyped_storage() is bucket.flat_param.untyped_storage():
                return bucket
        return None


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The items of the outermost ModuleLists and Sequentials: a transformer's layers, say."""
    for child in model.children():
        if isinstance(model, nn.ModuleList | nn.Sequential) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield child
        else:
            yield from blocks(child)


def parameters_by_unit(model: nn.Module, units: Iterable[nn.Module]) -> dict[nn.Module, list[Parameter]]:
    """Each parameter of `model` in the one unit that it belongs to.

    Args:
        model: the first unit, which has what no other unit has, and what several have.
        units: modules within it, none within another.

    Raises:
        ValueError: a unit is not within the model, or is within another unit.
    """
    by_unit: dict[nn.Module, list[Parameter]] = {model: []}
    unit_of: dict[nn.Module, nn.Module] = {}
    within_model = set(model.modules()) - {model}
    for unit in units:
        if unit not in within_model:
            raise ValueError(f"units: a {type(unit).__name__} is not within the model. Take it from model.modules().")
        for module in unit.modules():
            other = unit_of.setdefault(module, unit)
            if other is not unit:
                raise ValueError(
                    f"units: a {type(module).__name__} would be in two, a {type(other).__name__} and a "
                    f"{type(unit).__name__}. Name only one of these."
                )
        by_unit[unit] = []
    for param in model.parameters():
        homes = {
            unit_of.get(module, model)
            for module in model.modules()
            for other in module.parameters(recurse=False)
            if other is param
        }
        by_unit[homes.pop() if len(homes) == 1 else model].append(param)
    return {unit: params for unit, params in by_unit.items() if params or unit is model}
