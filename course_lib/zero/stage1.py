"""ZeRO stage 1: the optimizer's state is sharded (Rajbhandari et al. 2020, section 5.1, P_os).

    flat_param, param_shard, flat_grad, grad_shard, fragment       see flat.py

Every rank holds all parameters and all gradients. In `step` the gradients are reduce-scattered, so that each rank has
the average of its shard; it updates its shard; and the updated shards are all-gathered.

Bytes per rank for Ψ parameters on N ranks with Adam: 4Ψ + 4Ψ + 8Ψ/N in fp32; 2Ψ + 2Ψ + 12Ψ/N in bf16 with fp32
masters. In `step` the averages of the shard come on top, 4Ψ/N, and while a bucket is reduced its flat_grad, 4 bytes
for each of its elements.
Elements sent per rank and step: 2Ψ·(N-1)/N, half for each of the two collectives, as much as plain data parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from .engine import BUCKET_BYTES, Engine, ParamGroups
from .flat import ShardedBucket, in_buckets


class Stage1(Engine):
    """A model whose optimizer state is sharded.

    Args:
        model: made alike on every rank; rank 0's weights are given to all.
        optimizer_class: an element-wise one, such as SGD, Adam or AdamW: it sees shards of flattened parameters.
        process_group: the ranks that share the optimizer's state; all of them by default.
        param_groups: as for the optimizer, where parameters are not all to be trained, or not all alike.
        replicate_group: the ranks that hold the same shard in other groups, for hybrid sharding.
        bucket_bytes: how many bytes of parameters are reduced together.
        defaults: what `optimizer_class` takes: `lr=1e-3`, ...
    """

    buckets: list[ShardedBucket]

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: Callable[..., Optimizer],
        process_group: dist.ProcessGroup | None = None,
        *,
        param_groups: ParamGroups | None = None,
        replicate_group: dist.ProcessGroup | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        **defaults: Any,
    ) -> None:
        super().__init__(model, process_group, param_groups, replicate_group)
        # Partition: this rank owns one shard of every bucket, and its optimizer knows of nothing else.
        buckets = in_buckets(reversed(self.trainable), bucket_bytes)
        self.buckets = [ShardedBucket(params, self.rank, self.world_size) for params in buckets]
        self.optimizer = self._make_optimizer(optimizer_class, defaults)
        self._averaged = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._averaged = False  # what the coming backward adds is this rank's alone
        return super().forward(*args, **kwargs)

    def average_gradients(self) -> None:
        """Reduce: each rank gets the averaged gradient of its shards."""
        if self._averaged:
            return
        for bucket in self.buckets:
            bucket.zero_grad()  # an earlier average: this one is of all that backward has left since `zero_grad`
            bucket.collect_grads(self.scale)
            self._reduce_scatter(bucket)
        self._averaged = True

    def _reduce_scatter(self, bucket: ShardedBucket) -> None:
        flat_grad = bucket.take_flat_grad()
        grad_shard = flat_grad.new_empty(bucket.shard_numel)
        dist.reduce_scatter_single(grad_shard, flat_grad, group=self.process_group)
        if self.replicate_group is not None:
            dist.all_reduce(grad_shard, group=self.replicate_group)
        bucket.add_grad_shard(grad_shard)

    def step(self) -> None:
        """Reduce the gradients, update this rank's shards, and gather everyone's."""
        self.average_gradients()
        self.optimizer.step()
        for bucket in self.buckets:
            bucket.zero_grad()  # the averages are freed here; what backward left stays until `zero_grad`
        self.gather_parameters()
        self._averaged = False

    def gather_parameters(self) -> None:
        """Gather: every rank gets all updated shards, in the model's dtype."""
        works = [
            dist.all_gather_single(
                bucket.flat_param, bucket.param_shard.to(bucket.dtype), group=self.process_group, async_op=True
            )
            for bucket in self.buckets
        ]
        for work in works:
            work.wait()
