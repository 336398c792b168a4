"""What a training loop needs around an algorithm: buffers, clipping, and the state as a whole.

How gradients and parameters travel is in each stage's own file, which can be read without this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from . import optimizer_state
from .buckets import FlatBucket, Shard
from .ranks import Ranks

ParamGroups = Sequence[dict[str, Any]]


class Engine(nn.Module):
    """A model that trains on several ranks as it would in one process, on all their batches together.

    Args:
        model: made alike on every rank.
        param_groups: as for an optimizer; a parameter that is in no group is frozen. All parameters by default.
        ranks: those that train it.

    Raises:
        ValueError: there is nothing to train, or `param_groups` are not of this model.

    Attributes:
        trained: the parameters that require a gradient.
        frozen: what this rank holds of the others.
        numels: the size of each parameter, by name.
    """

    buckets: Sequence[FlatBucket]
    optimizer: Optimizer
    whole: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes a context in which the model holds all its parameters."""

    def __init__(self, model: nn.Module, param_groups: ParamGroups | None, ranks: Ranks) -> None:
        super().__init__()
        self.module, self.ranks = model, ranks
        self.param_groups = optimizer_state.checked_groups(model, param_groups)
        grouped = {param for group in self.param_groups for param in group["params"]}
        for param in model.parameters():
            param.requires_grad &= param in grouped
        self.trained = [param for param in model.parameters() if param.requires_grad]
        self.numels = {name: param.numel() for name, param in model.named_parameters()}
        self.frozen = [
            Shard(param=param, shape=param.shape, begin=0, place=slice(0, param.numel()), values=param)
            for param in model.parameters()
            if not param.requires_grad
        ]
        if not self.trained:
            raise ValueError("no parameter of the model requires a gradient: there is nothing to train.")
        self._buffers_differ = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output for this rank's part of the batch."""
        trained = set(self.trained)
        awake = [name for name, p in self.module.named_parameters() if p.requires_grad and p not in trained]
        if awake:
            raise ValueError(
                f"rank {dist.get_rank()} of {dist.get_world_size()}: {', '.join(awake)} required no gradient when the "
                "engine was made, so it has no place for one. Make the engine anew; or make it with all parameters "
                "trainable, and freeze some of them afterwards."
            )
        if not self.training:
            self.share_buffers()
        self._buffers_differ |= self.training
        return self.module(*args, **kwargs)

    def share_buffers(self) -> None:
        """Give every rank the first rank's buffers (such as running statistics), which follow each rank's batches."""
        if self._buffers_differ:
            self.ranks.share(self.module.buffers())
            self._buffers_differ = False

    def shards(self) -> Iterator[Shard]:
        """Return what this rank updates."""
        return (shard for bucket in self.buckets for shard in bucket.shards)

    def step(self) -> None:
        """Update the model with the averaged gradients. Call this on every rank."""
        raise NotImplementedError

    def average_gradients(self) -> None:
        """Give each shard its averaged gradient, if backward has not done so."""

    def gather_parameters(self) -> None:
        """Bring the updated shards into the model, as far as the model holds it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free all gradients. They cannot be kept as zeros: `set_to_none=False` is refused."""
        if not set_to_none:
            raise ValueError("zero_grad(set_to_none=False): an engine frees its gradients. Leave the argument out.")
        super().zero_grad()
        for bucket in self.buckets:
            bucket.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        """Wrap all but the last of several backwards before a step in this. It has an effect only in `DataParallel`.

        There it postpones the all-reduce. Stage 1 communicates only in `step`. Stages 2 and 3 reduce in every
        backward, because they keep only shards of gradients in between.
        """
        return nullcontext()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients down so that their norm, over all parameters and ranks, is at most `max_norm`.

        Returns:
            The L2 norm before, 0-dim, the same on every rank: as `torch.nn.utils.clip_grad_norm_` in one process.
        """
        self.average_gradients()
        mine = [shard.values for shard in self.shards()]
        norm = torch.nn.utils.get_total_norm([values.grad for values in mine if values.grad is not None])
        norm = self.ranks.sum_over_shards(norm.to(self.buckets[0].device).square()).sqrt()
        # Those of the model, too, if a stage keeps them: a later backward adds to what was clipped.
        torch.nn.utils.clip_grads_with_norm_({*mine, *self.trained}, max_norm, norm)
        return norm

    # -- the state as a whole: call each of these on every rank --------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Return a copy of the whole model's state, with the model's own keys, on every rank."""
        self.share_buffers()
        with self.whole():
            state = self.module.state_dict()
            return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:  # type: ignore[override]
        """Take a whole model's state, the same on every rank, as `torch.nn.Module.load_state_dict` does."""
        with self.whole():
            result = self.module.load_state_dict(state_dict, strict)
            for shard in (*self.shards(), *self.frozen):
                shard.values.data.copy_(shard.of(shard.param.detach()))
        return result

    def optimizer_state_dict(self) -> dict[str, Any]:
        """Return the whole optimizer's state, as the unsharded optimizer would, on every rank, in CPU memory.

        If the model is in bf16 or fp16, each parameter's state also has its fp32 values, as `master_param`.
        """
        return optimizer_state.gather(self.optimizer, self.shards(), self.param_groups, self.ranks.gather_objects)

    def load_optimizer_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a whole optimizer's state: of `optimizer_state_dict`, or of an unsharded optimizer."""
        optimizer_state.load(self.optimizer, self.shards(), self.param_groups, state_dict)
