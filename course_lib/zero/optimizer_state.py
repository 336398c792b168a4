"""The optimizer's state in pieces, from which whole states are put together, and the state of any other shards is cut.

piece          (begin, flat, other): what a rank holds for the elements from `begin` of a flattened parameter
flat           values with an element for each of the parameter's (a momentum), as flat tensors
other          values that all owners of the parameter have alike (a count of steps)
master_param   in flat, ours: the fp32 values behind the parameter
whole state    as the unsharded optimizer gives it: {"state": {number: {key: value}}, "param_groups": [...]}, where
               parameters are numbered through all groups
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from .buckets import Shard

if TYPE_CHECKING:
    from .engine import Engine

MASTER = "master_param"

Groups = Sequence[dict[str, Any]]
Piece = tuple[int, dict[str, Tensor], dict[str, Any]]


def checked_groups(model: nn.Module, param_groups: Iterable[Any] | None) -> list[dict[str, Any]]:
    """Return the groups as the unsharded optimizer would have them, with lists of parameters.

    Args:
        model: whose parameters these are.
        param_groups: groups, or the parameters of the only group; names in pairs of name and parameter are left out.

    Raises:
        ValueError: a parameter is not of the model, or is there twice.
    """
    groups: list[Any] = list(model.parameters() if param_groups is None else param_groups)
    if not all(isinstance(group, dict) for group in groups):
        groups = [{"params": groups}]
    groups = [g | {"params": [p[1] if isinstance(p, tuple) else p for p in g["params"]]} for g in groups]
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


def piece_of(engine: Engine, shard: Shard) -> Piece:
    """Return a copy of what this rank holds for a shard, in CPU memory."""
    state = {MASTER: shard.values, **engine.optimizer.state.get(shard.values, {})}
    state = {
        key: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value for key, value in state.items()
    }
    return shard.begin, *_split(state, shard.values.shape)


def _split(state: Mapping[str, Any], shape: torch.Size) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what has an element for each of a parameter, or shard, of this shape; and everything else."""
    # A count of steps is 0-dim, and so may the parameter be.
    flat = {k: v.reshape(-1) for k, v in state.items() if isinstance(v, Tensor) and v.shape == shape and k != "step"}
    return flat, {key: value for key, value in state.items() if key not in flat}


def cut(pieces: Iterable[Piece], begin: int, numel: int) -> Piece:
    """Return the piece of `numel` elements from `begin`, copied from the pieces that overlap with it."""
    end = begin + numel
    flat: dict[str, Tensor] = {}
    other: dict[str, Any] = {}
    for first, values, rest in pieces:
        other |= deepcopy(rest)
        for key, value in values.items():
            flat.setdefault(key, value.new_empty(numel))
            low, high = max(begin, first), min(end, first + len(value))
            if low < high:
                flat[key][low - begin : high - begin] = value[low - first : high - first]
    return begin, flat, other


def put(engine: Engine, pieces: Mapping[Shard, Piece], param_groups: Groups) -> None:
    """Give this rank's shards their pieces, and its optimizer the options (lr and so on) of `param_groups`.

    Raises:
        ValueError: these are groups of other sizes.
    """
    theirs, ours = ([len(group["params"]) for group in groups] for groups in (param_groups, engine.param_groups))
    if theirs != ours:
        raise ValueError(
            f"the state has parameter groups of {theirs} parameters, and this engine has groups of {ours}. "
            "Load it into an engine of the same model with the same param_groups."
        )
    states = {}
    for shard, (_, flat, other) in pieces.items():
        state = {key: value.view(shard.values.shape) for key, value in flat.items()} | other
        shard.values.data.copy_(state.pop(MASTER, shard.values.data))
        states[shard.values] = state
    groups = engine.optimizer.state_dict()["param_groups"]
    for group, other in zip(groups, param_groups, strict=True):
        group.update({key: value for key, value in other.items() if key != "params"})
    params = (param for group in engine.optimizer.param_groups for param in group["params"])
    numbered = {number: states[param] for number, param in enumerate(params) if states.get(param)}
    engine.optimizer.load_state_dict({"state": numbered, "param_groups": groups})


def whole_groups(engine: Engine) -> list[dict[str, Any]]:
    """Return the groups of a whole state: this rank's options, and the numbers of whole parameters."""
    number_of = _numbers(engine)
    return [
        {key: value for key, value in own.items() if key != "params"} | {"params": [number_of[p] for p in g["params"]]}
        for g, own in zip(engine.param_groups, engine.optimizer.param_groups, strict=True)
    ]


def _numbers(engine: Engine) -> dict[Parameter, int]:
    return {param: n for n, param in enumerate(param for group in engine.param_groups for param in group["params"])}


def gather(engine: Engine) -> dict[str, Any]:
    """Return the whole state. Call this on every rank."""
    number_of = _numbers(engine)
    mine = [(number_of[shard.param], piece_of(engine, shard)) for shard in engine.shards()]
    pieces: dict[int, list[Piece]] = defaultdict(list)
    for number, piece in chain(*engine.ranks.gather_objects(mine)):
        pieces[number].append(piece)
    state = {}
    for param, number in number_of.items():
        _, flat, other = cut(pieces[number], 0, engine.shapes[param].numel())
        if MASTER in flat and flat[MASTER].dtype == param.dtype:
            del flat[MASTER]  # the model has it
        if flat or other:
            state[number] = {key: value.view(engine.shapes[param]) for key, value in flat.items()} | other
    return {"state": state, "param_groups": whole_groups(engine)}


def load(engine: Engine, whole: Mapping[str, Any]) -> None:
    """Give this rank's optimizer its shards of a whole state.

    Raises:
        ValueError: this is no optimizer's state.
    """
    if not {"state", "param_groups"} <= whole.keys():
        raise ValueError(
            f"an optimizer's state has the keys 'state' and 'param_groups', and this has {list(whole)[:3]}. Give what "
            "optimizer_state_dict() of an engine, or state_dict() of a plain optimizer, returned."
        )
    number_of = _numbers(engine)
    pieces = {}
    for shard in engine.shards():
        state = _split(whole["state"].get(number_of[shard.param], {}), shard.shape)
        pieces[shard] = cut([(0, *state)], shard.begin, shard.values.numel())
    put(engine, pieces, whole["param_groups"])
