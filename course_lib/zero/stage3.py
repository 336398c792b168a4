"""ZeRO stage 3: parameters are sharded too (Rajbhandari et al. 2020, section 5.3, P_os+g+p).

    bucket, flat_param, param_shard, flat_grad, grad_shard       see buckets.py
    reduction      a bucket's reduce-scatter that is under way; there is one at a time
    unit           a module whose parameters are gathered together (a transformer block, say): see units.py

Every rank holds only shards. A unit is gathered just before its forward and its backward, and freed after each. Then
its gradients are reduce-scattered. While one unit computes, the next are being gathered.

Bytes per rank for Ψ parameters on N ranks with Adam:
(4Ψ + 4Ψ + 8Ψ)/N in fp32; 16Ψ/N in bf16 too, for masters, averages and moments. In forward and backward the units
gathered come on top: unit 0, the one in use and those ahead; and in backward the gradients of two units.
Elements sent per rank and step: 3Ψ·(N-1)/N, for two gathers and one reduction; each further micro-batch adds as much.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from .buckets import FlatBucket
from .engine import Engine, ParamGroups, Ranks
from .optimizer_state import sharded_groups
from .saved_tensors import saves_no_parameters
from .schedule import Units


class Stage3(Engine):
    """A model whose optimizer state, gradients and parameters are sharded.

    Args:
        model: of the same structure on every rank; rank 0's weights are copied to all. A model on the meta device is
            filled unit by unit, so that it is never whole: by each module's `reset_parameters`, then by the unit's own
            `init_weights`.
        optimizer_class: SGD, Adam, AdamW or a different element-wise one: it updates shards of flattened parameters.
        process_group: the ranks that share the states; all of them by default.
        param_groups: as for the optimizer; a parameter that is in no group is frozen.
        units: modules in the order of forward; by default each item of the model's ModuleLists and Sequentials.
        prefetch: how many units are gathered ahead of the one in use.
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
        units: Iterable[nn.Module] | None = None,
        prefetch: int = 1,
        find_unused_parameters: bool = False,
        **defaults: Any,
    ) -> None:
        super().__init__(model, param_groups, Ranks(process_group), find_unused_parameters)
        # Partition: this rank owns one shard of every bucket, and its optimizer knows of nothing else.
        # Gather: each unit before its forward and its backward. Reduce: its buckets, after its backward.
        self._units = Units(model, units, self.ranks, prefetch, self._reduce_scatter, self._end_backward)
        self.whole = self._units.ready
        self.buckets = [bucket for bucket in self._units.buckets if bucket.trained]
        self.frozen = [shard for bucket in self._units.buckets if not bucket.trained for shard in bucket.shards]
        self.optimizer = optimizer_class(sharded_groups(self.param_groups, self.buckets), **defaults)
        self._reduction: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with saves_no_parameters(self._units.running):
            return super().forward(*args, **kwargs)

    def _reduce_scatter(self, bucket: FlatBucket) -> None:
        """Reduce: this rank gets the averaged gradient of its shard of the bucket."""
        self._finish_reduction()  # one at a time, or the buckets under way would add up to all gradients
        bucket.collect_grads(self.ranks.scale, free=True)
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
