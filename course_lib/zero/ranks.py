"""The ranks of an engine, with hybrid sharding: those of one node share one copy of the states.

    process_group    N ranks that hold one shard each of the same copy
    replicate_group  R ranks that hold the same shard of different copies; 1 without hybrid sharding

`DataParallel` shards nothing: its process_group is None, and all its ranks are replicas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor


class Ranks:
    """The groups of an engine, this rank's place in them, and what the collectives of both come to."""

    def __init__(self, process_group: dist.ProcessGroup | None, replicate_group: dist.ProcessGroup | None) -> None:
        self.process_group, self.replicate_group = process_group, replicate_group
        self.rank = 0 if process_group is None else dist.get_rank(process_group)
        self.world_size = 1 if process_group is None else dist.get_world_size(process_group)
        copies = 1 if replicate_group is None else dist.get_world_size(replicate_group)
        self.scale = 1 / (self.world_size * copies)  # makes a sum over all ranks an average

    @property
    def everyone(self) -> dist.ProcessGroup | None:
        """The group of all the engine's ranks; with hybrid sharding, of all the ranks in the world."""
        if self.process_group is None or self.replicate_group is None:
            return self.process_group or self.replicate_group
        return dist.group.WORLD

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of the first rank to every rank, in place. Tensors on the meta device have none."""
        for tensor in tensors:
            if tensor.is_meta:
                continue
            values = tensor.detach().contiguous()
            for group in (self.replicate_group, self.process_group):
                if group is not None:
                    dist.broadcast(values, group_src=0, group=group)
            tensor.detach().copy_(values)

    def sum_over_shards(self, value: Tensor) -> Tensor:
        """Sum `value` over the ranks that share one copy, in place."""
        if self.process_group is not None:
            dist.all_reduce(value, group=self.process_group)
        return value

    def sum_over_copies(self, shard: Tensor) -> Tensor:
        """Sum a shard over the ranks that hold the same one, in place."""
        if self.replicate_group is not None:
            dist.all_reduce(shard, group=self.replicate_group)
        return shard

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the `value` of every rank that shares the copy."""
        if self.process_group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.process_group)
        return values
