"""ZeRO stage 2: gradients are sharded too (Rajbhandari et al. 2020, section 5.2, P_os+g).

    flat_param, param_shard, flat_grad, grad_shard, fragment       see flat.py
    reduction      a bucket's reduce-scatter that is under way; there is one at a time

Every rank holds all parameters, but keeps only its shard of the gradients: during backward, each gradient moves into
its bucket as soon as it is there, and each bucket is reduce-scattered as soon as it is complete, while backward
computes the next one. `step` updates the shard and all-gathers the parameters as in stage 1.

Bytes per rank for Ψ parameters on N ranks with Adam: 4Ψ + 4Ψ/N + 8Ψ/N in fp32; 2Ψ + 4Ψ/N + 12Ψ/N in bf16 with fp32
masters and averages (2Ψ + 14Ψ/N in the paper, which keeps the averages in fp16). During backward, two buckets at 4
bytes an element come on top, one filling and one under way: with large buckets this can be more than stage 1 takes.
Elements sent per rank and step: 2Ψ·(N-1)/N as in stage 1; each further micro-batch before the step adds Ψ·(N-1)/N.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .backward import after_backward, after_gradient
from .engine import BUCKET_BYTES, Engine, ParamGroups
from .flat import ShardedBucket, in_buckets


class Stage2(Engine):
    """A model whose optimizer state and gradients are sharded.

    Args:
        model: made alike on every rank; rank 0's weights are given to all.
        optimizer_class: an element-wise one, such as SGD, Adam or AdamW: it sees shards of flattened parameters.
        process_group: the ranks that share gradients and optimizer state; all of them by default.
        param_groups: as for the optimizer, where parameters are not all to be trained, or not all alike.
        replicate_group: the ranks that hold the same shard in other groups, for hybrid sharding.
        bucket_bytes: how many bytes of parameters are reduced together; by default an eighth of all, at most 25 MiB.
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
        bucket_bytes: int | None = None,
        **defaults: Any,
    ) -> None:
        super().__init__(model, process_group, param_groups, replicate_group)
        # Partition: this rank owns one shard of every bucket, and its optimizer knows of nothing else.
        if bucket_bytes is None:
            bucket_bytes = min(BUCKET_BYTES, sum(param.nbytes for param in self.trainable) // 8)
        buckets = in_buckets(reversed(self.trainable), bucket_bytes)
        self.buckets = [ShardedBucket(params, self.rank, self.world_size) for params in buckets]
        self.optimizer = self._make_optimizer(optimizer_class, defaults)
        for number, bucket in enumerate(self.buckets):
            for index, param in enumerate(bucket.params):
                after_gradient(param, self._on_gradient, number, index)
        self._in_backward = False
        self._next = 0  # the bucket that is to be reduced next: every rank takes them in this order
        self._reduction: tuple[ShardedBucket, Tensor, Tensor, Any] | None = None

    def _begin_backward(self) -> None:
        if not self._in_backward:
            self._in_backward, self._next = True, 0
            after_backward(self._end_backward)

    def _on_gradient(self, number: int, index: int, param: nn.Parameter) -> None:
        """Autograd has just put a gradient into `param.grad`."""
        self._begin_backward()
        assert param.grad is not None
        self.buckets[number].add_grad(index, param.grad, self.scale)
        param.grad = None  # it is in flat_grad now: the whole gradient is freed here
        while self._next < len(self.buckets) and self.buckets[self._next].complete:
            self._reduce_scatter(self.buckets[self._next])
            self._next += 1

    def _reduce_scatter(self, bucket: ShardedBucket) -> None:
        self._finish_reduction()  # one at a time, or the buckets under way would add up to all gradients
        flat_grad = bucket.take_flat_grad()
        grad_shard = flat_grad.new_empty(bucket.shard_numel)
        work = dist.reduce_scatter_single(grad_shard, flat_grad, group=self.process_group, async_op=True)
        self._reduction = bucket, flat_grad, grad_shard, work

    def _finish_reduction(self) -> None:
        if self._reduction is None:
            return
        bucket, _, grad_shard, work = self._reduction
        work.wait()
        self._reduction = None  # frees flat_grad: what is needed of it is in grad_shard
        if self.replicate_group is not None:
            dist.all_reduce(grad_shard, group=self.replicate_group)
        bucket.add_grad_shard(grad_shard)

    def _end_backward(self) -> None:
        # What is not complete by now lacks gradients that this rank does not have; others may.
        for bucket in self.buckets[self._next :]:
            self._reduce_scatter(bucket)
        # A gradient can come after its bucket has left, where one parameter is in two reentrant checkpoints.
        for bucket in self.buckets:
            if bucket.flat_grad is not None:
                self._reduce_scatter(bucket)
        self._finish_reduction()
        self._in_backward = False

    def step(self) -> None:
        """Update this rank's shards with the gradients that backward has reduced, and gather everyone's."""
        self.optimizer.step()
        self.gather_parameters()

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
