"""ZeRO stage 1: the optimizer's state is sharded (Rajbhandari et al. 2020, section 5.1, P_os).

    bucket, flat_param, param_shard, flat_grad, grad_shard       see buckets.py

Every rank holds all parameters and all gradients. In `step` each bucket's gradients are reduce-scattered.
Each rank then updates its shards, and the updated shards are all-gathered.

Bytes per rank for Ψ parameters on N ranks with Adam:
4Ψ + 4Ψ + 8Ψ/N in fp32; 2Ψ + 2Ψ + 12Ψ/N in bf16 with fp32 masters. In `step` the averages of the shards come on top,
4Ψ/N, and the flat_grad of one bucket.
Elements sent per rank and step: 2Ψ·(N-1)/N, half for each of the two collectives, as much as plain data parallel.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from .backward import weakly
from .buckets import BUCKET_BYTES, FlatBucket, in_buckets
from .engine import Engine, ParamGroups, Ranks
from .optimizer_state import sharded_groups


class Stage1(Engine):
    """A model whose optimizer state is sharded.

    Args:
        model: of the same structure on every rank; rank 0's weights are copied to all.
        optimizer_class: SGD, Adam, AdamW or a different element-wise one: it updates shards of flattened parameters.
        process_group: the ranks that share the states; all of them by default.
        param_groups: as for the optimizer; a parameter that is in no group is frozen.
        bucket_bytes: how many bytes of parameters are reduced together; by default 25 MiB.
        find_unused_parameters: whether ranks exchange which parameters they used.
        defaults: what `optimizer_class` takes: `lr=1e-3`, ...
    """

    buckets: list[FlatBucket]

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: Callable[..., Optimizer],
        process_group: dist.ProcessGroup | None = None,
        *,
        param_groups: ParamGroups | None = None,
        bucket_bytes: int | None = None,
        find_unused_parameters: bool = False,
        **defaults: Any,
    ) -> None:
        super().__init__(model, param_groups, Ranks(process_group), find_unused_parameters)
        # Partition: this rank owns one shard of every bucket, and its optimizer knows of nothing else.
        buckets = in_buckets(reversed(self.trained), bucket_bytes or BUCKET_BYTES)
        self.buckets = [FlatBucket(params, self.ranks.rank, self.ranks.world_size) for params in buckets]
        self.optimizer = optimizer_class(sharded_groups(self.param_groups, self.buckets), **defaults)
        for param in self.trained:
            param.register_post_accumulate_grad_hook(weakly(self._on_gradient))

    def _on_gradient(self, param: nn.Parameter) -> None:
        for bucket in self.buckets:
            bucket.grad_shard = None  # the average lacks the gradient that backward has just added

    def average_gradients(self) -> None:
        """Average the gradients that backward has left since `zero_grad`."""
        if all(bucket.grad_shard is not None for bucket in self.buckets):
            return
        for bucket in self.buckets:
            bucket.collect_grads(self.ranks.scale)  # scale = 1 / all ranks, so the sum is the average
            self._reduce_scatter(bucket)
        self.show_grads()  # to the optimizer, except those of parameters that no rank used

    def _reduce_scatter(self, bucket: FlatBucket) -> None:
        """Reduce: this rank gets the averaged gradient of its shard of the bucket."""
        flat_grad = bucket.take_flat_grad()
        grad_shard = flat_grad.new_empty(bucket.shard_numel)
        dist.reduce_scatter_single(grad_shard, flat_grad, group=self.ranks.process_group)
        bucket.grad_shard = grad_shard

    def step(self) -> None:
        """Update this rank's shards with the averaged gradients. Call this on every rank."""
        self.average_gradients()
        # Update: 1/N of the parameters, with 1/N of the optimizer's state
        self.optimizer.step()
        for bucket in self.buckets:
            bucket.zero_grad()  # frees the averages; the gradients that backward left stay until `zero_grad`
        self.gather_parameters()

    def gather_parameters(self) -> None:
        """Gather: every rank gets all updated shards, in the model's dtype."""
        works = [self._all_gather(bucket) for bucket in self.buckets]  # all start before the first is awaited
        for work in works:
            work.wait()

    def _all_gather(self, bucket: FlatBucket) -> Any:
        shard = bucket.param_shard.to(bucket.dtype)
        return dist.all_gather_single(bucket.flat_param, shard, group=self.ranks.process_group, async_op=True)
