"""An optimizer whose state is spread over the ranks: ZeRO's first stage in its simplest form.

    owner       the rank that keeps a parameter's optimizer state and updates it; each whole parameter has one
    optim       this rank's own optimizer, made for the parameters that it owns
    message     a tensor that its owner broadcasts: a large parameter itself, or a buffer with several small ones

Every rank holds all Ψ parameters and all gradients, which are averaged before `step` by whatever the model is wrapped
in, such as DistributedDataParallel. In `step` each rank updates what it owns, then broadcasts it to its peers.

Bytes per rank, with Adam in fp32: 4Ψ parameters + 4Ψ gradients + 8Ψ/N optimizer state, as even as whole parameters
can be dealt out; and in `step`, until all messages have arrived, the buffers with small parameters. Elements sent per
step and rank: Ψ·(N−1)/N, on top of the 2Ψ·(N−1)/N of averaging the gradients.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.utils._pytree import tree_map_only

SMALL_BYTES = 2**20
"""Parameters below this size share a message: their broadcast would cost more than two copies."""


def owners_by_size(numels: Sequence[int], loads: list[int]) -> list[int]:
    """Deal parameters out, the largest first, each to the rank that has the least so far.

    Args:
        numels: the size of each parameter, in elements.
        loads: elements that each rank has already; what is dealt out is added to it.

    Returns:
        The owner of each parameter.
    """
    owners = [0] * len(numels)
    for index in sorted(range(len(numels)), key=lambda i: numels[i], reverse=True):
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += numels[index]
    return owners


class ShardedOptimizer(Optimizer):
    """A torch optimizer of any class but LBFGS, with its state spread over the ranks, like `ZeroRedundancyOptimizer`.

    Args:
        params: parameters, or parameter groups, as for any optimizer; the same on every rank, in the same order.
        optimizer_class: `torch.optim.Adam`, say.
        process_group: the ranks that share the state; all of them by default.
        parameters_as_bucket_view: has no effect; small parameters always travel in one buffer.
        defaults: what `optimizer_class` takes: `lr=1e-3`, ...

    Raises:
        TypeError, ValueError: `params` is not what any optimizer takes, or is empty.
        ValueError: `optimizer_class` is LBFGS, whose step is one for all parameters, and there are several ranks.
    """

    optim: Optimizer

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        process_group: dist.ProcessGroup | None = None,
        parameters_as_bucket_view: bool = False,
        **defaults: Any,
    ) -> None:
        self.process_group = process_group if process_group is not None else dist.group.WORLD
        self.rank = dist.get_rank(self.process_group)
        self.world_size = dist.get_world_size(self.process_group)
        self._owner: dict[Tensor, int] = {}
        self._loads = [0] * self.world_size
        self._whole: dict[int, Any] | None = None  # the state of all ranks, where it was consolidated
        super().__init__(params, defaults)
        self.optim = optimizer_class([self._owned(group) for group in self.param_groups], **defaults)
        if isinstance(self.optim, LBFGS) and self.world_size > 1:
            raise ValueError(
                "LBFGS computes one step for all parameters together. Each rank of a ShardedOptimizer would compute "
                "one for a part of them. Use LBFGS itself on every rank, with averaged gradients."
            )
        self.state, self.defaults = self.optim.state, self.optim.defaults  # schedulers look for momentum in defaults
        _copy_options(self.optim.param_groups, self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; the earlier groups keep their owners. Call this on every rank."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        owners = owners_by_size([param.numel() for param in group["params"]], self._loads)
        self._owner.update(zip(group["params"], owners, strict=True))
        if hasattr(self, "optim"):  # not yet, while Optimizer.__init__ adds the first groups
            self.optim.add_param_group(self._owned(group))
            _copy_options(self.optim.param_groups[-1:], [group])  # earlier ones: a scheduler may have changed ours

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Update every parameter, each on its owner, and bring all ranks up to date.

        Args:
            closure: computes the loss anew; called on every rank.
            kwargs: passed on to the step of `optimizer_class`.

        Returns:
            The closure's loss, as that step returns it.
        """
        self._whole = None
        _copy_options(self.param_groups, self.optim.param_groups)  # a scheduler may have changed them
        loss = self.optim.step(**kwargs) if closure is None else self.optim.step(closure=closure, **kwargs)
        _copy_options(self.optim.param_groups, self.param_groups)  # and so may the step
        self._broadcast()
        return loss

    @torch.no_grad()
    def _broadcast(self) -> None:
        """Give every rank the owners' values. All messages start before the first is awaited."""
        messages: list[tuple[int, Tensor]] = []
        small: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
        for param in self._all_params:
            if param.requires_grad or param.grad is not None:  # a frozen one has not changed on its owner
                if param.nbytes >= SMALL_BYTES and param.is_contiguous():
                    messages.append((self._owner[param], param))
                else:
                    small[self._owner[param], param.dtype, param.device].append(param)
        packed = [(owner, torch.cat([param.flatten() for param in params])) for (owner, *_), params in small.items()]
        group = self.process_group
        works = [dist.broadcast(m, group_src=owner, group=group, async_op=True) for owner, m in messages + packed]
        for work in works:
            work.wait()
        for params, (_, message) in zip(small.values(), packed, strict=True):
            for param, values in zip(params, message.split([param.numel() for param in params]), strict=True):
                param.copy_(values.view_as(param))

    @property
    def _all_params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    def _owned(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return a group with only the parameters that this rank owns."""
        options = {key: value for key, value in group.items() if key != "param_names"}
        return options | {"params": [param for param in group["params"] if self._owner[param] == self.rank]}

    # -- saving and loading ----------------------------------------------------------------------------------------

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather the state of all ranks on rank `to` of the group, in CPU memory. Call this on every rank."""
        owned = [(n, self.state[param]) for n, param in enumerate(self._all_params) if param in self.state]
        mine = {n: tree_map_only(Tensor, lambda value: value.detach().cpu(), state) for n, state in owned}
        shares: list[Any] | None = [None] * self.world_size if self.rank == to else None
        dist.gather_object(mine, shares, group=self.process_group, group_dst=to)
        self._whole = None if shares is None else {n: state for share in shares for n, state in share.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, as `optimizer_class` would return it without sharding.

        Raises:
            RuntimeError: the state has not been consolidated on this rank since the last step.
        """
        if self._whole is None:
            raise RuntimeError(
                f"rank {self.rank} of {self.world_size}: the optimizer's state has not been consolidated on this rank "
                "since the last step, and each rank holds only its own part. Call consolidate_state_dict"
                f"(to={self.rank}) on every rank first, then state_dict() on rank {self.rank}."
            )
        whole = super().state_dict()
        whole["state"] = dict(sorted(self._whole.items()))
        return whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this rank's part of a whole state: of `state_dict`, or of an unsharded optimizer.

        Raises:
            ValueError: `state_dict` was made for parameter groups of other sizes.
        """
        both = state_dict["param_groups"], self.param_groups
        theirs, ours = ([len(group["params"]) for group in groups] for groups in both)
        if theirs != ours:
            raise ValueError(
                f"the state dict has parameter groups of {theirs} parameters, and this optimizer has groups of {ours}. "
                "Load it into an optimizer that was made with the same groups."
            )
        owned = [n for n, param in enumerate(self._all_params) if self._owner[param] == self.rank]
        state = {mine: state_dict["state"][n] for mine, n in enumerate(owned) if n in state_dict["state"]}
        groups = self.optim.state_dict()["param_groups"]
        _copy_options(state_dict["param_groups"], groups)
        self.optim.load_state_dict({"state": state, "param_groups": groups})
        self.state = self.optim.state
        self._whole = None
        _copy_options(self.optim.param_groups, self.param_groups)


def _copy_options(source: Sequence[dict[str, Any]], target: Sequence[dict[str, Any]]) -> None:
    """Give each group of `target` the options (lr, betas, ...) of the group at its place in `source`."""
    for one, other in zip(source, target, strict=True):
        other.update({key: value for key, value in one.items() if key not in ("params", "param_names")})
