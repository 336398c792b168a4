"""Data parallel: every rank holds everything, and only the gradients are averaged. What ZeRO starts from.

    master         what the optimizer updates: the parameter itself, or its copy in fp32 if it is in bf16 or fp16
    flat_grad      [numel] a bucket's gradients in fp32: see buckets.py; here the whole bucket is the only shard

During backward each gradient moves into its bucket, and each bucket is all-reduced as soon as it is complete, while
backward computes the next one. Then every rank makes the same step.

Bytes per rank for Ψ parameters with Adam, however many ranks there are: 4Ψ + 4Ψ + 8Ψ in fp32; 2Ψ + 4Ψ + 12Ψ in bf16
with fp32 masters and averages. Elements sent per rank and step: 2Ψ·(N-1)/N.
Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .backward import InBackward
from .buckets import BUCKET_BYTES, FlatBucket, in_buckets
from .engine import Engine, ParamGroups, Ranks
from .optimizer_state import sharded_groups


class DataParallel(Engine):
    """A model that is replicated on every rank.

    Args:
        model: of the same structure on every rank; rank 0's weights are copied to all.
        optimizer_class: any that steps without a closure, such as SGD, Adam or AdamW.
        process_group: the ranks that average their gradients; all of them by default.
        param_groups: as for the optimizer; a parameter that is in no group is frozen.
        bucket_bytes: how many bytes of parameters are reduced together.
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
        bucket_bytes: int = BUCKET_BYTES,
        find_unused_parameters: bool = False,
        **defaults: Any,
    ) -> None:
        super().__init__(model, param_groups, Ranks(process_group, sharded=False), find_unused_parameters)
        buckets = in_buckets(reversed(self.trained), bucket_bytes)
        self.buckets = [FlatBucket(params, rank=0, world_size=1) for params in buckets]
        for bucket in self.buckets:
            if bucket.dtype == bucket.master_dtype:  # the optimizer updates the parameters themselves
                bucket.shards = [replace(shard, values=shard.param) for shard in bucket.shards]
        self.optimizer = optimizer_class(sharded_groups(self.param_groups, self.buckets), **defaults)
        self._backward = InBackward(model, self.buckets, self.ranks.scale, self._all_reduce, self._end_backward)
        self._reductions: list[tuple[FlatBucket, Tensor, Any]] = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep this rank's gradients to itself; the first backward outside reduces them with its own."""
        self._backward.enabled = False
        try:
            yield
        finally:
            self._backward.enabled = True

    def _all_reduce(self, bucket: FlatBucket) -> None:
        """Reduce: every rank gets the averaged gradient of the whole bucket."""
        for shard in bucket.shards:  # what earlier backwards have left, averaged or not
            for grad in {shard.param.grad, shard.values.grad}:
                if grad is not None:
                    bucket.add_grad(shard.param, grad, self.ranks.scale)
            shard.param.grad = shard.values.grad = None
        bucket.grad_shard = None  # it is in flat_grad now
        flat_grad = bucket.take_flat_grad()
        work = dist.all_reduce(flat_grad, group=self.ranks.process_group, async_op=True)
        self._reductions.append((bucket, flat_grad, work))

    def _end_backward(self) -> None:
        for bucket, flat_grad, work in self._reductions:
            work.wait()
            bucket.add_grad_shard(flat_grad)
        self._reductions.clear()
        self.show_grads()

    def step(self) -> None:
        """Update the model with the gradients that backward has averaged: the same on every rank."""
        self.optimizer.step()
        self.gather_parameters()

    def gather_parameters(self) -> None:
        """Copy the updated masters into the model, if the model is in bf16 or fp16."""
        for bucket in self.buckets:
            if bucket.flat_param is not None and bucket.dtype != bucket.master_dtype:
                bucket.flat_param.copy_(bucket.param_shard)
