"""The whole optimizer's state from the fragments' states, and back to them.

A parameter's fragments lie on several ranks, its owners, and so does its state. These are

    whole state    as the unsharded optimizer gives it: {"state": {number: {key: value}}, "param_groups": [...]}, where
                   parameters are numbered through all groups
    element-wise   a value with an element for each of the parameter's (a momentum): each owner has a fragment of it
    other          one value for the whole parameter (a count of steps): all owners have the same
    master_param   element-wise and ours: the fp32 values behind a parameter that is in bf16 or fp16
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from .flat import Bucket, Fragment

MASTER = "master_param"


def checked_groups(model: nn.Module, param_groups: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The groups as the unsharded optimizer would have them, with lists of parameters.

    Raises:
        ValueError: a parameter is not of the model, or is there twice.
    """
    if param_groups is None:
        return [{"params": list(model.parameters())}]
    groups = [group | {"params": list(group["params"])} for group in param_groups]
    theirs = {id(param) for param in model.parameters()}
    seen: set[int] = set()
    for number, group in enumerate(groups):
        for param in group["params"]:
            if id(param) not in theirs:
                raise ValueError(
                    f"param_groups[{number}] holds a tensor of shape {list(param.shape)} that is no parameter of the "
                    "model. Take the parameters from model.parameters() or model.named_parameters()."
                )
            if id(param) in seen:
                raise ValueError(
                    f"param_groups[{number}] holds a parameter of shape {list(param.shape)} for the second time. "
                    "Leave it in one group; tied weights count once."
                )
            seen.add(id(param))
    return groups


def _state_of(optimizer: Optimizer, bucket: Bucket, fragment: Fragment) -> dict[str, Any]:
    """A fragment's state; with its values, if the model has them in another dtype."""
    master = {MASTER: fragment.values.detach()} if bucket.dtype != bucket.master_dtype else {}
    return dict(optimizer.state.get(fragment.values, {})) | master


def is_element_wise(key: str, value: Any, shape: torch.Size) -> bool:
    """Whether `value` has an element for each of a parameter, or fragment, of this shape."""
    # A count of steps is 0-dim, and so may the parameter be.
    return isinstance(value, Tensor) and value.shape == shape and key != "step"


AllGather = Callable[[Tensor], Tensor]
"""Makes [padded_numel] of every rank's [shard_numel]."""

AllGatherObject = Callable[[Any], Iterable[Any]]
"""Makes a list of every rank's object."""


def gather(
    optimizer: Optimizer,
    buckets: Iterable[Bucket],
    param_groups: Sequence[Mapping[str, Any]],
    all_gather: AllGather,
    all_gather_object: AllGatherObject,
) -> dict[str, Any]:
    """The whole state. To be called on every rank.

    Args:
        optimizer: this rank's.
        buckets: of its parameters.
        param_groups: with the parameters themselves, as the unsharded optimizer would have them.
        all_gather, all_gather_object: between the ranks that share the state.
    """
    states: dict[Parameter, dict[str, Any]] = {}
    for bucket in buckets:
        states |= _gather_bucket(optimizer, bucket, all_gather, all_gather_object)
    whole: dict[str, Any] = {"state": {}, "param_groups": []}
    number = 0
    for group, mine in zip(param_groups, optimizer.param_groups, strict=True):
        numbers = range(number, number + len(group["params"]))
        options = {key: value for key, value in mine.items() if key != "params"}
        whole["param_groups"].append(options | {"params": list(numbers)})
        whole["state"] |= {n: states[p] for n, p in zip(numbers, group["params"], strict=True) if p in states}
        number = numbers.stop
    return whole


def _gather_bucket(
    optimizer: Optimizer, bucket: Bucket, all_gather: AllGather, all_gather_object: AllGatherObject
) -> dict[Parameter, dict[str, Any]]:
    """The whole state of each parameter in `bucket` that has one."""
    mine = {fragment: _state_of(optimizer, bucket, fragment) for fragment in bucket.fragments}
    # First what there is, on any rank.
    outlines: dict[int, dict[str, Any]] = {}
    for outline in all_gather_object({f.index: _outline(f, state) for f, state in mine.items() if state}):
        outlines |= outline
    # Then the elements, one kind of value after the other.
    wholes: dict[tuple[str, torch.dtype], list[Tensor]] = {}
    kinds = {(k, v) for outline in outlines.values() for k, v in outline.items() if isinstance(v, torch.dtype)}
    for key, dtype in sorted(kinds, key=str):
        shard = torch.zeros(bucket.shard_numel, dtype=dtype, device=bucket.device)
        for fragment, state in mine.items():
            if outlines.get(fragment.index, {}).get(key) == dtype:
                shard[fragment.place] = state[key].reshape(-1)
        wholes[key, dtype] = bucket.views(all_gather(shard))
    return {
        bucket.params[index]: {
            key: wholes[key, value][index].clone() if isinstance(value, torch.dtype) else value
            for key, value in outline.items()
        }
        for index, outline in outlines.items()
    }


def _outline(fragment: Fragment, state: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is element-wise, the dtype; the other values themselves."""
    shape = fragment.values.shape
    return {key: value.dtype if is_element_wise(key, value, shape) else _on_cpu(value) for key, value in state.items()}


def load(
    optimizer: Optimizer,
    fragments: Iterable[tuple[Bucket, Fragment]],
    param_groups: Sequence[Mapping[str, Any]],
    whole: Mapping[str, Any],
) -> None:
    """Give `optimizer` its fragments of a whole state.

    Args:
        optimizer: this rank's.
        fragments: all of them, in any order.
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
    number_of = {p: number for number, p in enumerate(p for group in param_groups for p in group["params"])}
    states: dict[Parameter, dict[str, Any]] = {}
    for bucket, fragment in fragments:
        state = dict(whole["state"].get(number_of[bucket.params[fragment.index]], {}))
        for key, value in state.items():
            if is_element_wise(key, value, bucket.shapes[fragment.index]):
                value = fragment.of(value)
            # The optimizer goes on to write to its tensors, and those of `whole` are the caller's.
            state[key] = value.clone() if isinstance(value, Tensor) else value
        master = state.pop(MASTER, None)
        if master is not None:
            fragment.values.data.copy_(master)
        states[fragment.values] = state
    set_state(optimizer, states, whole["param_groups"])


def set_state(
    optimizer: Optimizer, states: Mapping[Parameter, dict[str, Any]], options: Sequence[Mapping[str, Any]]
) -> None:
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


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value
