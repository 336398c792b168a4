"""The parts of training that do not depend on the stage: ranks, buffers, clipping, and whole state dicts.

How gradients and parameters travel is in each stage's own file, which can be read without this one.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Adafactor, Optimizer

from . import optimizer_state
from .buckets import FlatBucket, Shard

ParamGroups = Iterable[Any]


class Ranks:
    """The ranks of an engine.

    Attributes:
        world_size: the number of shards, of which this rank owns number `rank`. `DataParallel` shards nothing: each
            rank owns the only one.
        scale: makes a sum over all ranks an average.
    """

    def __init__(self, process_group: dist.ProcessGroup | None, *, sharded: bool = True) -> None:
        self.process_group, self._sharded = process_group or dist.group.WORLD, sharded
        self.rank = dist.get_rank(process_group) if sharded else 0
        self.world_size = dist.get_world_size(process_group) if sharded else 1
        self.scale = 1 / dist.get_world_size(process_group)

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled, and with it what has ranks: an engine, and the model of a `Stage3`.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "an engine cannot be copied or pickled, nor can the model of a Stage3: a process group belongs to it. Copy "
            "the model before you make the engine (AveragedModel(model), copy.deepcopy(model)), or make a model anew "
            "and load engine.state_dict() into it. To save or return an engine, take its state_dict()."
        )

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of the first rank to every rank, in place. Tensors on the meta device have none."""
        for tensor in tensors:
            if not tensor.is_meta:
                values = tensor.detach().contiguous()
                dist.broadcast(values, group_src=0, group=self.process_group)
                tensor.detach().copy_(values)

    def sum_over_shards(self, value: Tensor) -> Tensor:
        """Sum `value` over the owners of all shards, in place."""
        if self._sharded:
            dist.all_reduce(value, group=self.process_group)
        return value

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the `value` of the owner of each shard."""
        values = [value] * self.world_size
        if self._sharded:
            dist.all_gather_object(values, value, group=self.process_group)
        return values


def _add_param_group(param_group: dict[str, Any]) -> None:
    raise ValueError(
        "add_param_group: an engine trains the parameters that it was made with, and ranks would not average the "
        "gradients of others. Make the engine with all groups, param_groups=[...]. To train a group only later, freeze "
        "it after that: param.requires_grad = False."
    )


class Engine(nn.Module):
    """A model that trains on several ranks as it would in one process, on all their batches together.

    Use the engine's own `step` and `clip_grad_norm_`, not torch's: `optimizer` is for schedulers.

    Args:
        model: of the same structure on every rank.
        param_groups: as for an optimizer; a parameter that is in no group is frozen. All parameters by default.
        ranks: those that train it.
        find_unused: whether ranks exchange which parameters they used.

    Raises:
        ValueError: there is nothing to train, `param_groups` are not of this model, a module of `parallel` has
            different parameters on these ranks, or two parameters share memory.

    Attributes:
        trained: the parameters that require a gradient.
        frozen: the shards that this rank holds of all other parameters.
        zeroed: how often `zero_grad` has freed the gradients.
        shapes: the shape of each whole parameter.
    """

    buckets: Sequence[FlatBucket]
    optimizer: Optimizer
    whole: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes a context in which the model holds all its parameters."""

    def __init__(self, model: nn.Module, param_groups: ParamGroups | None, ranks: Ranks, find_unused: bool) -> None:
        super().__init__()
        self.module, self.ranks, self._find_unused = model, ranks, find_unused
        self._check_parts()
        self._check_memory()
        self.param_groups = optimizer_state.checked_groups(model, param_groups)
        grouped = {param for group in self.param_groups for param in group["params"]}
        for param in model.parameters():
            param.requires_grad &= param in grouped
        self.trained = [param for param in model.parameters() if param.requires_grad]
        self.shapes = {param: param.shape for param in model.parameters()}
        self.frozen = [
            Shard(param=param, shape=param.shape, begin=0, place=slice(0, param.numel()), values=param)
            for param in model.parameters()
            if not param.requires_grad
        ]
        if not self.trained:
            raise ValueError("no parameter of the model requires a gradient: there is nothing to train.")
        ranks.share([*model.parameters(), *model.buffers()])
        self._buffers_differ, self.zeroed = False, 0

    def _parts(self) -> Iterator[tuple[str, list[int]]]:
        """Return the kinds of modules that differ on some ranks, and these ranks: `parallel` marks such modules."""
        for module in self.module.modules():
            if getattr(module, "differs_by_rank", False):
                group: Any = module.group or dist.group.WORLD
                yield type(module).__name__, dist.get_process_group_ranks(group)

    def _check_parts(self) -> None:
        """Refuse to share and average different parts, such as experts."""
        mine = dist.get_process_group_ranks(self.ranks.process_group)
        for kind, theirs in self._parts():
            if len(both := sorted({*mine} & {*theirs})) > 1:
                raise ValueError(
                    f"rank {dist.get_rank()}: {kind} has different parameters on ranks {both}, over which this engine "
                    "would share and average them. Make the engine for a process group of ranks that have the same "
                    "parts, such as the data axis of a mesh. If there is none, train without an engine: experts with "
                    "parallel.average_gradients."
                )

    def _check_memory(self) -> None:
        """Refuse parameters that share memory, unless none is trained: an engine gives each memory of its own."""
        names: dict[Any, str] = {}
        trained: set[Any] = set()
        for name, param in self.module.named_parameters():
            place = param.untyped_storage()._cdata, param.storage_offset()
            if param.numel() and not param.is_meta:
                trained |= {place} if param.requires_grad else set()
                if names.setdefault(place, name) != name and place in trained:
                    raise ValueError(
                        f"rank {dist.get_rank()}: {names[place]} and {name} are two parameters in the same memory, "
                        "which an engine would train apart. To tie weights, let both names have one parameter: "
                        "model.head.weight = model.embedding.weight, without nn.Parameter() and without .data."
                    )

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "optimizer":
            if isinstance(value, Adafactor) and self.ranks.world_size > 1:
                raise ValueError(
                    "Adafactor computes with whole matrices, and this engine would give it shards of flattened "
                    "parameters: it would train differently on each number of ranks. Use DataParallel, or a "
                    "ShardedOptimizer, which leaves parameters whole."
                )
            engine = weakref.proxy(self)
            # Its own zero_grad would leave the gradients in `buckets`, or in the model
            value.zero_grad = lambda set_to_none=True: engine.zero_grad(set_to_none)
            value.add_param_group = _add_param_group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output for this rank's part of the batch."""
        if self.training:
            for bucket in self.buckets:
                bucket.check_params()
            self._buffers_differ = True
        else:
            self.share_buffers()
        return self.module(*args, **kwargs)

    def share_buffers(self) -> None:
        """Give every rank the first rank's buffers (such as running statistics), which follow each rank's batches."""
        if self._buffers_differ:
            self.ranks.share(self.module.buffers())
            self._buffers_differ = False

    def shards(self) -> Iterator[Shard]:
        """Return the shards that this rank updates."""
        return (shard for bucket in self.buckets for shard in bucket.shards)

    def step(self) -> None:
        """Update the model with the averaged gradients. Call this on every rank. It takes no closure, so no LBFGS."""
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
        self.zeroed += 1
        for bucket in self.buckets:
            bucket.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        """Wrap all but the last of several backwards before a step in this. It has an effect only in `DataParallel`.

        There it postpones the all-reduce. Stage 1 communicates only in `step`. Stages 2 and 3 reduce in every
        backward, because they keep only shards of gradients in between.
        """
        return nullcontext()

    def show_grads(self) -> None:
        """Set each shard's `.grad`: its average, or None if no rank used the parameter. Call this on every rank.

        A rank knows only which parameters it used itself. Either all ranks use all parameters, which is checked; or
        ranks exchange which ones they used: one small all-reduce, as in DistributedDataParallel.
        """
        params = [(bucket, param) for bucket in self.buckets for param in bucket.places]
        if self._find_unused:
            used = torch.tensor([param in bucket.used for bucket, param in params], dtype=torch.uint8)
            used = used.to(self.buckets[0].device)
            dist.all_reduce(used, dist.ReduceOp.MAX, group=self.ranks.process_group)
            for (bucket, param), flag in zip(params, used.tolist(), strict=True):
                bucket.used |= {param} if flag else set()
        elif missing := [p for bucket, p in params if p.requires_grad and p not in bucket.used]:
            names = [name for name, param in self.module.named_parameters() if param in set(missing)]
            more = f" and {len(names) - 3} more" if names[3:] else ""
            what = f"backward gave no gradient to {', '.join(names[:3])}{more}"
            if not any(bucket.used for bucket in self.buckets):
                what = "no parameter has had a gradient since zero_grad. Call loss.backward() before step"
            raise ValueError(
                f"rank {dist.get_rank()}: {what}. Other ranks may have used what this rank did not, or the backward "
                "was torch.autograd.grad. Make the engine with find_unused_parameters=True: then ranks exchange which "
                "parameters they used. If no rank ever uses them, freeze them before: param.requires_grad = False."
            )
        for bucket in self.buckets:
            bucket.show_grads()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients down so that their norm, over all parameters and ranks, is at most `max_norm`.

        Returns:
            The L2 norm before, 0-dim, the same on every rank: as `torch.nn.utils.clip_grad_norm_` in one process.

        Raises:
            ValueError: other ranks have parts of the model: see `parallel.clip_grad_norm_`.
        """
        self.average_gradients()
        norm = self.total_norm()
        mine = [shard.values for shard in self.shards()]
        # Those of the model, too, if a stage keeps them: a later backward adds to what was clipped.
        torch.nn.utils.clip_grads_with_norm_({*mine, *self.trained}, max_norm, norm)
        return norm

    def total_norm(self) -> Tensor:
        """Return the L2 norm of the averaged gradients of all shards, 0-dim, the same on every rank.

        Raises:
            ValueError: other ranks have parts of the model whose gradients belong to the norm.
        """
        for kind, theirs in self._parts():
            if len(theirs) > 1:
                raise ValueError(
                    f"rank {dist.get_rank()}: {kind} has parts on ranks {theirs}, and this engine sees the gradients "
                    "of one: their norm would differ between ranks. With tensor parallelism, call "
                    "parallel.clip_grad_norm_(engine, max_norm, group). LossScaler needs the norm, too: train in bf16."
                )
        norm = self.norm_of([shard.values.grad for shard in self.shards() if shard.values.grad is not None])
        return self.ranks.sum_over_shards(norm.square()).sqrt()

    def norm_of(self, grads: list[Tensor]) -> Tensor:
        """Return the L2 norm of some of this rank's gradients, 0-dim, in a dtype that is the same on every rank."""
        # A rank may have shards of one dtype only, or none: a sum over ranks needs the same dtype on each.
        widest = reduce(torch.promote_types, [bucket.master_dtype for bucket in self.buckets]).to_real()
        return torch.nn.utils.get_total_norm(grads).to(self.buckets[0].device, widest)

    # -- the state as a whole: call each of these on every rank --------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Return a copy of the whole model's state, with the model's own keys, on every rank."""
        self.share_buffers()
        with self.whole():
            state = self.module.state_dict()
            return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:  # type: ignore[override]
        """Take a whole model's state, the same on every rank, as `torch.nn.Module.load_state_dict` does.

        The masters of a bf16 or fp16 model get the rounded values that `state_dict` has: load the optimizer's state
        after this.
        """
        with self.whole():
            result = self.module.load_state_dict(state_dict, strict)
            missing = {*getattr(result, "missing_keys", ())}
            loaded = {p for name, p in self.module.named_parameters(remove_duplicate=False) if name not in missing}
            for shard in (*self.shards(), *self.frozen):
                if shard.param in loaded:
                    shard.values.data.copy_(shard.of(shard.param.detach()))
        return result

    def optimizer_state_dict(self) -> dict[str, Any]:
        """Return the whole optimizer's state, as the unsharded optimizer would, on every rank, in CPU memory.

        If the model is in bf16 or fp16, each parameter's state also has its fp32 values, as `master_param`.
        """
        return optimizer_state.gather(self)

    def load_optimizer_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a whole optimizer's state: of `optimizer_state_dict`, or of an unsharded optimizer.

        Call this after `load_state_dict`, which overwrites the `master_param` of a bf16 or fp16 model.
        """
        optimizer_state.load(self, state_dict)
