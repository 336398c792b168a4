"""What the engines have in common: the model, the ranks, the norm of all gradients, and the state as a whole.

How gradients and parameters travel is the stages' own, each in its file. This one speaks of

    engine         a model that trains on N ranks: `engine(x)`, `loss.backward()`, `engine.step()`, `engine.zero_grad()`
    bucket         some parameters, whose gradients travel together: see flat.py
    optimizer      of the class asked for, but made for this rank's fragments alone: hence its state is sharded
    replicas       for hybrid sharding: the ranks of `process_group` (those of one node, say) share one copy of the
                   states, and those of `replicate_group` hold the same shard of different copies
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from . import optimizer_state
from .backward import before_backward
from .flat import Bucket, Fragment, ReplicatedBucket, in_buckets

BUCKET_BYTES = 25 * 2**20
"""The size of a bucket by default, as in DistributedDataParallel."""

ParamGroups = Sequence[dict[str, Any]]


class Engine(nn.Module):
    """A model that trains on the ranks of a group as it would in one process, on all their batches together.

    Args:
        model: made alike on every rank; the weights and buffers of the group's first rank are given to all.
        process_group: the ranks that share the states; all of them by default.
        param_groups: as for an optimizer, where parameters are not all to be trained, or not all alike.
        replicate_group: the ranks that hold the same shard in other groups; there are none by default.

    Raises:
        TypeError, ValueError: there is nothing that can be trained, or `param_groups` are not of this model.
    """

    buckets: Sequence[Bucket]
    optimizer: Optimizer

    def __init__(
        self,
        model: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        param_groups: ParamGroups | None = None,
        replicate_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.module = model
        self.process_group = process_group if process_group is not None else dist.group.WORLD
        self.replicate_group = replicate_group
        self.rank = dist.get_rank(self.process_group)
        self.world_size = dist.get_world_size(self.process_group)
        replicas = dist.get_world_size(replicate_group) if replicate_group is not None else 1
        self.scale = 1 / (self.world_size * replicas)  # makes a sum over ranks an average
        self.param_groups = optimizer_state.checked_groups(model, param_groups)
        grouped = [param for group in self.param_groups for param in group["params"]]
        self.trainable = [param for param in grouped if param.requires_grad]
        self._asleep = [param for param in grouped if not param.requires_grad]
        trained = set(self.trainable)
        frozen = in_buckets((param for param in model.parameters() if param not in trained), math.inf)
        self.frozen: Sequence[Bucket] = [ReplicatedBucket(params, frozen=True) for params in frozen]
        if not self.trainable:
            raise ValueError("no parameter of the model requires a gradient: there is nothing to train.")
        self._buffers_differ = True
        self._broadcast(model.parameters())
        self.share_buffers()

    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the values of the first rank, of the first group where there are replicas."""
        for tensor in tensors:
            values = tensor.detach().contiguous()
            if self.replicate_group is not None:
                dist.broadcast(values, group_src=0, group=self.replicate_group)
            dist.broadcast(values, group_src=0, group=self.process_group)
            tensor.detach().copy_(values)

    def share_buffers(self) -> None:
        """Buffers, such as running statistics, follow each rank's own batches; the first rank's count."""
        if self._buffers_differ:
            self._broadcast(self.module.buffers())
            self._buffers_differ = False

    def _make_optimizer(self, optimizer_class: Callable[..., Optimizer], defaults: dict[str, Any]) -> Optimizer:
        """An optimizer for this rank's fragments, each in the group of its parameter."""
        fragments: dict[Parameter, list[Parameter]] = {}
        for bucket, fragment in self.fragments():
            fragments.setdefault(bucket.params[fragment.index], []).append(fragment.values)
        groups = [
            group | {"params": [values for param in group["params"] for values in fragments.get(param, [])]}
            for group in self.param_groups
        ]
        return optimizer_class(groups, **defaults)

    def fragments(self) -> Iterator[tuple[Bucket, Fragment]]:
        """What this rank updates: each fragment, and the bucket that its parameter is in."""
        return ((bucket, fragment) for bucket in self.buckets for fragment in bucket.fragments)

    # -- training --------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output for this rank's part of the batch."""
        self._check_asleep()
        if not self.training:
            self.share_buffers()
        output = self.module(*args, **kwargs)
        self._buffers_differ |= self.training
        before_backward(output, self._begin_backward)
        return output

    def _check_asleep(self) -> None:
        awake = {param for param in self._asleep if param.requires_grad}
        if awake:
            names = [name for name, param in self.module.named_parameters() if param in awake]
            raise ValueError(
                f"rank {self.rank} of {self.world_size}: {', '.join(names)} required no gradient when the engine was "
                "made, so it has no place for one. Make the engine anew; or make it with all parameters trainable, "
                "and freeze some of them afterwards: those it leaves alone."
            )

    def _begin_backward(self) -> None:
        """Called when a backward comes to what `forward` returned."""

    def average_gradients(self) -> None:
        """See to it that each fragment's `.grad` is averaged over the ranks, where backward has not done so."""

    def step(self) -> None:
        """Update the model with the averaged gradients. To be called on every rank."""
        raise NotImplementedError

    def gather_parameters(self) -> None:
        """Bring what the optimizer has updated into the model, as far as the model holds it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free all gradients. They cannot be kept as zeros: `set_to_none=False` is refused."""
        if not set_to_none:
            raise ValueError("zero_grad(set_to_none=False): an engine frees its gradients. Leave the argument out.")
        super().zero_grad()
        for bucket in self.buckets:
            bucket.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        """Wrap all but the last of several backwards before a step in this. It has an effect in `DataParallel` alone.

        There it puts the all-reduce off. Stage 1 communicates in `step` alone, whatever this says. Stages 2 and 3
        reduce in every backward, whatever this says: what they keep in between are shards, never whole gradients.
        """
        return nullcontext()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients down so that their norm, over all parameters and ranks, is at most `max_norm`.

        Returns:
            The L2 norm before, 0-dim, the same on every rank: as `torch.nn.utils.clip_grad_norm_` in one process.
        """
        self.average_gradients()
        mine = [fragment.values for _, fragment in self.fragments()]
        norm = torch.nn.utils.get_total_norm([values.grad for values in mine if values.grad is not None])
        norm = self.sum_over_shards(norm.to(self.trainable[0].device).square()).sqrt()
        # Those of the model, too, where a stage keeps them: a later backward adds to what was clipped.
        torch.nn.utils.clip_grads_with_norm_({*mine, *self.trainable}, max_norm, norm)
        return norm

    # -- between shards: `DataParallel`, where the one shard is the whole, needs none of it ------------------------

    def sum_over_shards(self, value: Tensor) -> Tensor:
        """Sum `value` over the ranks, in place: each brings what its own shard comes to."""
        dist.all_reduce(value, group=self.process_group)
        return value

    def _all_gather(self, shard: Tensor) -> Tensor:
        flat = shard.new_empty(self.world_size * shard.numel())
        dist.all_gather_single(flat, shard, group=self.process_group)
        return flat

    def _all_gather_object(self, value: Any) -> list[Any]:
        values = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.process_group)
        return values

    # -- the state as a whole: each of these is to be called on every rank -----------------------------------------

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """A copy of the whole model's state, with the model's own keys, on every rank."""
        self.share_buffers()
        copies = dict(self._copies())
        state: dict[str, Any] = self.module.state_dict(keep_vars=True)
        for name, value in state.items():
            if isinstance(value, Tensor):
                state[name] = copies[value] if value in copies else value.detach().clone()
        return state

    def _copies(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter, with a copy of all its values."""
        return ((param, param.detach().clone()) for param in self.module.parameters())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:  # type: ignore[override]
        """Take a whole model's state, the same on every rank, as `torch.nn.Module.load_state_dict` does."""
        result = self.module.load_state_dict(state_dict, strict)
        for bucket, fragment in self.fragments():
            fragment.values.data.copy_(fragment.of(bucket.params[fragment.index].detach()))
        return result

    def optimizer_state_dict(self) -> dict[str, Any]:
        """The whole optimizer's state, as the unsharded optimizer would give it, on every rank.

        Where the model is in bf16 or fp16, each parameter's state also has its fp32 values, as `master_param`.
        """
        return optimizer_state.gather(
            self.optimizer, self.buckets, self.param_groups, self._all_gather, self._all_gather_object
        )

    def load_optimizer_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a whole optimizer's state: of `optimizer_state_dict`, or of an unsharded optimizer."""
        optimizer_state.load(self.optimizer, self.fragments(), self.param_groups, state_dict)
