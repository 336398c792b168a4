"""ZeRO stage 2: gradients are sharded too (Rajbhandari et al. 2020, section 5.2, P_os+g).

    bucket, flat_param, param_shard, flat_grad, grad_shard       see buckets.py
    reduction      a bucket's reduce-scatter that is under way; there is one at a time

Every rank holds all parameters, but only its shards of the gradients: each bucket is reduce-scattered in backward, as
soon as it is complete, while backward computes the next one.
Each rank then updates its shards, and the updated shards are all-gathered.

Bytes per rank for Ψ parameters on N ranks with Adam:
4Ψ + 4Ψ/N + 8Ψ/N in fp32; 2Ψ + 4Ψ/N + 12Ψ/N in bf16 with fp32 masters and averages (2Ψ + 14Ψ/N in the paper, which
keeps averages in fp16). In backward, flat_grad of two buckets adds to this; of more if gradients come out of order.
Elements sent per rank and step: 2Ψ·(N-1)/N; each further micro-batch before the step adds Ψ·(N-1)/N.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from .backward import InBackward
from .buckets import FlatBucket, an_eighth, in_buckets
from .engine import Engine, ParamGroups, Ranks
from .optimizer_state import sharded_groups


class Stage2(Engine):
    """A model whose optimizer state and gradients are sharded.

    Args:
        model: of the same structure on every rank; rank 0's weights are copied to all.
        optimizer_class: SGD, Adam, AdamW or a different element-wise one: it updates shards of flattened parameters.
        process_group: the ranks that share the states; all of them by default.
        param_groups: as for the optimizer; a parameter that is in no group is frozen.
        bucket_bytes: how many bytes of parameters are reduced together; by default an eighth of all, at most 25 MiB.
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
        buckets = in_buckets(reversed(self.trained), bucket_bytes or an_eighth(self.trained))
        self.buckets = [FlatBucket(params, self.ranks.rank, self.ranks.world_size) for params in buckets]
        self.optimizer = optimizer_class(sharded_groups(self.param_groups, self.buckets), **defaults)
        self._backward = InBackward(model, self.buckets, self.ranks.scale, self._reduce_scatter, self._end_backward)
        self._reduction: Any = None

    def _reduce_scatter(self, bucket: FlatBucket) -> None:
        """Reduce: this rank gets the averaged gradient of its shard of the bucket."""
        self._finish_reduction()  # one at a time, or the buckets under way would add up to all gradients
        flat_grad = bucket.take_flat_grad()
        grad_shard = flat_grad.new_empty(bucket.shard_numel)
        work = dist.reduce_scatter_single(grad_shard, flat_grad, group=self.ranks.process_group, async_op=True)
        self._reduction = bucket, flat_grad, grad_shard, work

    def _finish_reduction(self) -> None:
        if self._reduction is not None:
            bucket, _, grad_shard, work = self._reduction
            work.wait()
            self._reduction = None  # frees flat_grad: this rank needs only grad_shard
            bucket.add_grad_shard(grad_shard)

    def _end_backward(self) -> None:
        self._finish_reduction()
        self.show_grads()  # to the optimizer, except those of parameters that no rank used

    def step(self) -> None:
        """Update this rank's shards with the averaged gradients. Call this on every rank."""
        # Update: 1/N of the parameters, with 1/N of the optimizer's state
        self.optimizer.step()
        self.gather_parameters()

    def gather_parameters(self) -> None:
        """Gather: every rank gets all updated shards, in the model's dtype."""
        works = [self._all_gather(bucket) for bucket in self.buckets]  # all start before the first is awaited
        for work in works:
            work.wait()

    def _all_gather(self, bucket: FlatBucket) -> Any:
        shard = bucket.param_shard.to(bucket.dtype)
        return dist.all_gather_single(bucket.flat_param, shard, group=self.ranks.process_group, async_op=True)
