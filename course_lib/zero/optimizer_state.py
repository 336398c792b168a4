"""The whole optimizer's state from the states of all ranks' shards, and back to them.

whole state    as the unsharded optimizer gives it: {"state": {number: {key: value}}, "param_groups": [...]}, where
               parameters are numbered through all groups
element-wise   a value with an element for each of the parameter's (a momentum): each owner has some of them.
               All owners have the same of other values (a count of steps)
master_param   element-wise and ours: the fp32 values behind a parameter that is in bf16 or fp16
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from .buckets import Shard

MASTER = "master_param"

Groups = Sequence[dict[str, Any]]


def checked_groups(model: nn.Module, param_groups: Groups | None) -> list[dict[str, Any]]:
    """Return the groups as the unsharded optimizer would have them, with lists of parameters.

    Raises:
        ValueError: a parameter is not of the model, or is there twice.
    """
    if param_groups is None:
        return [{"params": list(model.parameters())}]
    groups = [group | {"params": list(group["params"])} for group in param_groups]
    left = set(model.parameters())
    for number, group in enumerate(groups):
        for param in group["params"]:
            if param not in left:
                raise ValueError(
                    f"param_groups[{number}] holds a tensor of shape {list(param.shape)} that is no parameter of the "
                    "model, or is in the groups twice. Take each parameter of model.parameters() at most once; tied "
                    "weights count once."
                )
            left.remove(param)
    return groups


def sharded_groups(param_groups: Groups, buckets: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the groups for this rank's optimizer: with its shards instead of the parameters."""
    values: dict[Parameter, list[Parameter]] = defaultdict(list)
    for bucket in buckets:
        for shard in bucket.shards:
            values[shard.param].append(shard.values)
    return [group | {"params": [v for param in group["params"] for v in values[param]]} for group in param_groups]


def is_element_wise(key: str, value: Any, shape: torch.Size) -> bool:
    """Return whether `value` has an element for each of a parameter, or shard, of this shape."""
    # A count of steps is 0-dim, and so may the parameter be.
    return isinstance(value, Tensor) and value.shape == shape and key != "step"


def _numbered(param_groups: Groups) -> dict[Parameter, int]:
    return {param: number for number, param in enumerate(p for group in param_groups for p in group["params"])}


def gather(
    optimizer: Optimizer, shards: Iterable[Shard], param_groups: Groups, gather_objects: Callable[[Any], list[Any]]
) -> dict[str, Any]:
    """Return the whole state. Call this on every rank.

    Args:
        optimizer, shards: this rank's.
        param_groups: with the parameters themselves, as the unsharded optimizer would have them.
        gather_objects: makes a list of every rank's object, in the order of their shards.
    """
    number_of = _numbered(param_groups)
    mine: list[tuple[int, torch.Size, str, bool, Any]] = []
    for shard in shards:
        state = dict(optimizer.state.get(shard.values, {}))
        if shard.param.dtype != shard.values.dtype:
            state[MASTER] = shard.values
        for key, value in state.items():
            element_wise = is_element_wise(key, value, shard.values.shape)
            value = value.detach().cpu().clone() if isinstance(value, Tensor) else value
            mine.append((number_of[shard.param], shard.shape, key, element_wise, value))
    found: dict[int, dict[str, Any]] = defaultdict(lambda: defaultdict(list))
    for number, shape, key, element_wise, value in (entry for share in gather_objects(mine) for entry in share):
        if element_wise:
            found[number][key].append((shape, value))
        else:
            found[number][key] = value
    state = {number: {key: _joined(value) for key, value in found[number].items()} for number in sorted(found)}
    numbers = iter(range(len(number_of)))
    groups = [
        {key: value for key, value in own.items() if key != "params"} | {"params": [next(numbers) for _ in g["params"]]}
        for g, own in zip(param_groups, optimizer.param_groups, strict=True)
    ]
    return {"state": state, "param_groups": groups}


def _joined(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return torch.cat([values.reshape(-1) for _, values in value]).view(value[0][0])


def load(optimizer: Optimizer, shards: Iterable[Shard], param_groups: Groups, whole: Mapping[str, Any]) -> None:
    """Give `optimizer` its shards of a whole state.

    Args:
        optimizer, shards: this rank's.
        param_groups: with the parameters themselves, as the unsharded optimizer would have them.
        whole: such as the unsharded optimizer's `state_dict()`.

    Raises:
        ValueError: `whole` was made for groups of other sizes.
    """
    theirs, ours = ([len(group["params"]) for group in groups] for groups in (whole["param_groups"], param_groups))
    if theirs != ours:
        raise ValueError(
            f"the state has parameter groups of {theirs} parameters, and this engine has groups of {ours}. "
            "Load it into an engine of the same model with the same param_groups."
        )
    number_of = _numbered(param_groups)
    states: dict[Parameter, dict[str, Any]] = {}
    for shard in shards:
        state = dict(whole["state"].get(number_of[shard.param], {}))
        for key, value in state.items():
            if is_element_wise(key, value, shard.shape):
                value = shard.of(value)
            # The optimizer goes on to write to its tensors, and those of `whole` are the caller's.
            state[key] = value.clone() if isinstance(value, Tensor) else value
        master = state.pop(MASTER, None)
        if master is not None:
            shard.values.data.copy_(master)
        states[shard.values] = state
    set_state(optimizer, states, whole["param_groups"])


def set_state(optimizer: Optimizer, states: Mapping[Parameter, dict[str, Any]], options: Groups) -> None:
    """Give `optimizer` the states of its parameters, and the options (lr and so on) of its groups.

    Raises:
        ValueError: there are options for another number of groups.
    """
    groups = optimizer.state_dict()["param_groups"]
    if len(groups) != len(options):
        raise ValueError(
            f"the state has {len(options)} parameter groups, and the optimizer has {len(groups)}. "
            "Make the engine with the same param_groups as the one that the state is of."
        )
    for group, theirs in zip(groups, options, strict=True):
        group.update({key: value for key, value in theirs.items() if key != "params"})
    params = (param for group in optimizer.param_groups for param in group["params"])
    numbered = {number: states[param] for number, param in enumerate(params) if states.get(param)}
    optimizer.load_state_dict({"state": numbered, "param_groups": groups})
