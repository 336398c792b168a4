"""ZeRO stage 3: parameters are sharded too (Rajbhandari et al. 2020, section 5.3, P_os+g+p).

    flat_param, param_shard, flat_grad, grad_shard, fragment       see flat.py; a unit's buckets have a flat_param only
                   while it is gathered, and the model's parameters are empty tensors otherwise
    unit           a module whose parameters are gathered together (a transformer block, say); unit 0 is the whole
                   model, for the parameters that are in no other unit or in several
    reduction      a bucket's reduce-scatter that is under way; there is one at a time

Between steps a rank holds nothing but its shards. A unit is gathered just before its forward and freed after it,
gathered again just before its backward and freed after it, and its gradients are then reduce-scattered. While one
unit computes, the next are being gathered. Every rank passes through all units in the order of their numbers, forth
in forward and back in backward, also those that it does not use: so the collectives are the same on every rank.

Bytes per rank for Ψ parameters on N ranks with Adam: (4Ψ + 4Ψ + 8Ψ)/N in fp32; 16Ψ/N in bf16 too, for masters,
averages and moments. During forward and backward the units gathered come on top: unit 0, the one in use and those
ahead, at 2 or 4 bytes an element; and in backward the gradients of two units, of which one is at 4.
Elements sent per rank and step: 3Ψ·(N-1)/N, for two gathers and one reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .backward import after_backward, before_backward
from .engine import Engine, ParamGroups
from .flat import ShardedBucket
from .notes import notes_of_parameters
from .units import Unit, blocks, parameters_by_unit


class Stage3(Engine):
    """A model whose optimizer state, gradients and parameters are sharded.

    Args:
        model: made alike on every rank; rank 0's weights are given to all.
        optimizer_class: an element-wise one, such as SGD, Adam or AdamW: it sees shards of flattened parameters.
        process_group: the ranks that share all states; all of them by default.
        param_groups: as for the optimizer, where parameters are not all to be trained, or not all alike.
        replicate_group: the ranks that hold the same shard in other groups, for hybrid sharding.
        units: modules within the model, in the order in which forward comes to them; by default each item of its
            ModuleLists and Sequentials. A unit's parameters must be used in its own forward only.
        prefetch: how many units are gathered ahead of the one in use.
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
        units: Iterable[nn.Module] | None = None,
        prefetch: int = 1,
        **defaults: Any,
    ) -> None:
        super().__init__(model, process_group, param_groups, replicate_group)
        # Partition: this rank owns one shard of every bucket, and its optimizer knows of nothing else.
        by_unit = parameters_by_unit(model, blocks(model) if units is None else units)
        self.units = [Unit(params, set(self.trainable), self.process_group) for params in by_unit.values()]
        self.buckets = [bucket for unit in self.units for bucket in unit.buckets]
        self.frozen = [bucket for unit in self.units for bucket in unit.frozen]
        self.optimizer = self._make_optimizer(optimizer_class, defaults)
        for number, module in enumerate(by_unit):
            module.register_forward_pre_hook(partial(self._before_forward, number))
            module.register_forward_hook(partial(self._after_forward, number))
        self.prefetch = prefetch
        self._in_forward = self._in_backward = False
        self._running: list[Unit] = []  # their forward has begun and not ended
        self._at = 0  # in backward: the unit that has been come to; those after it have done their backward
        self._gathered = 0  # in forward: units below this number have been gathered; in backward: those from it on
        self._reduction: tuple[ShardedBucket, Tensor, Tensor, Any] | None = None

    # -- forward: a unit is gathered before it and freed after it --------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._in_forward = True
        try:
            with notes_of_parameters(self._running):
                return super().forward(*args, **kwargs)
        finally:
            self._in_forward = False

    def _before_forward(self, number: int, module: nn.Module, args: Any) -> None:
        if not self._in_backward:
            self._check_called(module)
            if number == 0:
                self._gathered = 0
                self._running.clear()
            self._gather_up_to(number + self.prefetch)
        self.units[number].ready()
        self._running.append(self.units[number])

    def _after_forward(self, number: int, module: nn.Module, args: Any, output: Any) -> None:
        self._running.remove(self.units[number])
        if self._in_backward:
            return  # activation checkpointing has run it again, for the backward that is to come
        before_backward(output, partial(self._before_unit_backward, number))
        if number == 0:
            number = len(self.units) - 1
            self._gather_up_to(number)  # also those that this rank did not come to: others may have
        for unit in self.units[: number + 1]:
            if unit not in self._running:
                unit.free()

    def _gather_up_to(self, number: int) -> None:
        while self._gathered <= min(number, len(self.units) - 1):
            self.units[self._gathered].gather()
            self._gathered += 1

    # -- backward: a unit is gathered before it, freed after it, and its gradients reduced -------------------------

    def _begin_backward(self) -> None:
        if not self._in_backward:
            self._in_backward = True
            self._at = self._gathered = len(self.units)
            after_backward(self._end_backward)
            self.units[0].gather()

    def _before_unit_backward(self, number: int) -> None:
        self._begin_backward()
        if number > 0:
            self._come_to(number)
        self.units[number].ready()

    def _come_to(self, number: int) -> None:
        """Go back through the units as far as `number`."""
        while self._at > number:
            self._at -= 1
            if self._at + 1 < len(self.units):
                self._leave(self.units[self._at + 1])
            while self._gathered > max(1, self._at - self.prefetch):
                self._gathered -= 1
                self.units[self._gathered].gather()

    def _leave(self, unit: Unit) -> None:
        unit.free()
        for bucket in unit.buckets:
            self._reduce_scatter(bucket)

    def _reduce_scatter(self, bucket: ShardedBucket) -> None:
        self._finish_reduction()  # one at a time, or the buckets under way would add up to all gradients
        bucket.collect_grads(self.scale)
        for param in bucket.params:
            param.grad = None  # it is in flat_grad now: the whole gradient is freed here
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
        self._come_to(0)
        self._leave(self.units[0])
        # A unit that forward comes to twice, or out of order, may have gradients after it was left.
        for unit in self.units:
            unit.free()
        for bucket in self.buckets:
            if any(param.grad is not None for param in bucket.params):
                self._reduce_scatter(bucket)
        self._finish_reduction()
        self._in_backward = False

    # -- step: the shards are all there is to update ---------------------------------------------------------------

    def step(self) -> None:
        """Update this rank's shards; the other ranks will gather them when they need them."""
        self.optimizer.step()

    def _copies(self) -> Iterator[tuple[Tensor, Tensor]]:
        for unit in self.units:
            unit.ready()
            for bucket in (*unit.buckets, *unit.frozen):
                yield from ((param, param.detach().clone()) for param in bucket.params)
            unit.free()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:  # type: ignore[override]
        """Take a whole model's state, the same on every rank, as `torch.nn.Module.load_state_dict` does."""
        for unit in self.units:
            unit.ready()
        result = self.module.load_state_dict(state_dict, strict)
        for unit in self.units:
            unit.keep()
            unit.free()
        return result

    def _check_called(self, module: nn.Module) -> None:
        if torch.is_grad_enabled() and not self._in_forward:
            raise ValueError(
                f"rank {self.rank} of {self.world_size}: a {type(module).__name__} of the model was called by itself. "
                "Stage 3 frees parameters until backward, which it can do only if the engine is called: engine(x)."
            )
