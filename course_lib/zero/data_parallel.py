"""Data parallel: every rank holds everything, and only the gradients are averaged. What ZeRO starts from.

    master         what the optimizer updates: the parameter itself, or its copy in fp32 where it is in bf16 or fp16
    flat_grad      [numel] a bucket's gradients in fp32: see flat.py; with the whole bucket as the only shard
    reduction      a bucket's all-reduce that is under way

During backward each gradient moves into its bucket, and each bucket is all-reduced as soon as it is complete, while
backward computes the next one. Then every rank makes the same step.

Bytes per rank for Ψ parameters with Adam, however many ranks there are: 4Ψ + 4Ψ + 8Ψ in fp32; 2Ψ + 4Ψ + 12Ψ in bf16
with fp32 masters and averages. Elements sent per rank and step: 2Ψ·(N-1)/N.
Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from .backward import after_backward, after_gradient
from .engine import BUCKET_BYTES, Engine, ParamGroups
from .flat import ReplicatedBucket, in_buckets


class DataParallel(Engine):
    """A model that is replicated on every rank.

    Args:
        model: made alike on every rank; rank 0's weights are given to all.
        optimizer_class: any, such as SGD, Adam or AdamW.
        process_group: the ranks that average their gradients; all of them by default.
        param_groups: as for the optimizer, where parameters are not all to be trained, or not all alike.
        bucket_bytes: how many bytes of parameters are reduced together.
        defaults: what `optimizer_class` takes: `lr=1e-3`, ...
    """

    buckets: list[ReplicatedBucket]

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: Callable[..., Optimizer],
        process_group: dist.ProcessGroup | None = None,
        *,
        param_groups: ParamGroups | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        **defaults: Any,
    ) -> None:
        super().__init__(model, process_group, param_groups)
        buckets = in_buckets(reversed(self.trainable), bucket_bytes)
        self.buckets = [ReplicatedBucket(params) for params in buckets]
        self.optimizer = self._make_optimizer(optimizer_class, defaults)
        for number, bucket in enumerate(self.buckets):
            for index, param in enumerate(bucket.params):
                after_gradient(param, self._on_gradient, number, index)
        self._synchronize = True
        self._in_backward = False
        self._next = 0  # the bucket that is to be reduced next: every rank takes them in this order
        self._reductions: list[tuple[ReplicatedBucket, Tensor, Any]] = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep this rank's gradients to itself; the first backward outside reduces them with its own."""
        self._synchronize = False
        try:
            yield
        finally:
            self._synchronize = True

    def _begin_backward(self) -> None:
        if self._synchronize and not self._in_backward:
            self._in_backward, self._next = True, 0
            after_backward(self._end_backward)

    def _on_gradient(self, number: int, index: int, param: Parameter) -> None:
        """Autograd has just put a gradient into `param.grad`, or added it to what was there."""
        self._begin_backward()
        if not self._synchronize:
            return
        assert param.grad is not None
        self.buckets[number].add_grad(index, param.grad, self.scale)
        param.grad = None  # it is in flat_grad now
        while self._next < len(self.buckets) and self.buckets[self._next].complete:
            self._all_reduce(self.buckets[self._next])
            self._next += 1

    def _all_reduce(self, bucket: ReplicatedBucket) -> None:
        for fragment in bucket.fragments:  # what earlier backwards have left, averaged or not
            for param in (bucket.params[fragment.index], fragment.values):
                if param.grad is not None:
                    bucket.add_grad(fragment.index, param.grad, self.scale)
                    param.grad = None
        flat_grad = bucket.take_flat_grad()
        work = dist.all_reduce(flat_grad, group=self.process_group, async_op=True)
        self._reductions.append((bucket, flat_grad, work))

    def _end_backward(self) -> None:
        # What is not complete by now lacks gradients that this rank does not have; others may.
        for bucket in self.buckets[self._next :]:
            self._all_reduce(bucket)
        self._finish_reductions()
        # A gradient can come after its bucket has left, where one parameter is in two reentrant checkpoints.
        for bucket in self.buckets:
            if bucket.flat_grad is not None:
                self._all_reduce(bucket)
        self._finish_reductions()
        self._in_backward = False

    def _finish_reductions(self) -> None:
        for bucket, flat_grad, work in self._reductions:
            work.wait()
            for fragment, grad in zip(bucket.fragments, bucket.views(flat_grad), strict=True):
                fragment.values.grad = grad if bucket.is_used(fragment.index, grad) else None
        self._reductions.clear()

    def step(self) -> None:
        """Update the model with the gradients that backward has averaged: the same on every rank."""
        self.optimizer.step()
        self.gather_parameters()

    def gather_parameters(self) -> None:
        """Bring the updated masters into the model, where they are not the model's own parameters."""
        for bucket in self.buckets:
            for param, fragment in zip(bucket.params, bucket.fragments, strict=True):
                if param is not fragment.values:
                    param.data.copy_(fragment.values.data)

    # -- every rank has the whole: there is nothing to add up or to gather -----------------------------------------

    def sum_over_shards(self, value: Tensor) -> Tensor:
        return value

    def _all_gather(self, shard: Tensor) -> Tensor:
        return shard

    def _all_gather_object(self, value: Any) -> list[Any]:
        return [value]
