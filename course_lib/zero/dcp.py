"""An engine's state as `torch.distributed.checkpoint` saves and loads it: each rank its own shards.

    state          a flat dict of what this rank owns: `param:NAME` and `state:KEY:NAME` in shards (other values of the
                   optimizer's as they are), `buffer:NAME`, and `options`, the lr and so on of each group

By itself torch knows only rectangular shards of tensors; from those that were saved, it finds the ones that overlap
with each that is wanted.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData, WriteItem, WriteItemType
from torch.nn import Parameter

from .buckets import Shard
from .engine import Engine
from .optimizer_state import is_element_wise, set_state


@dataclass(frozen=True, eq=False)
class FlatShard:
    """Elements of a flattened tensor that has `total`, from `begin`; `values` is read and written in place."""

    begin: int
    total: int
    values: Tensor

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:  # torch calls it
        return [ChunkStorageMetadata(offsets=torch.Size([self.begin]), sizes=self.values.size())]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:  # torch calls it
        [chunk] = self.__create_chunk_list__()
        properties = TensorProperties.create_from_tensor(self.values)
        data = TensorWriteData(chunk=chunk, properties=properties, size=torch.Size([self.total]))
        return [WriteItem(index=MetadataIndex(name, chunk.offsets), type=WriteItemType.SHARD, tensor_data=data)]


def _flat(shard: Shard, values: Tensor) -> FlatShard:
    return FlatShard(shard.begin, shard.shape.numel(), values.detach().reshape(-1))


def _named(engine: Engine, shards: Iterable[Shard]) -> Iterator[tuple[str, Shard]]:
    names = {param: name for name, param in engine.module.named_parameters()}
    return ((names[shard.param], shard) for shard in shards)


def state_of(engine: Engine) -> dict[str, Any]:
    """Return the state. Call this on every rank."""
    state = _weights(engine)
    for name, shard in _named(engine, engine.shards()):
        for key, value in engine.optimizer.state.get(shard.values, {}).items():
            element_wise = is_element_wise(key, value, shard.values.shape)
            state[f"state:{key}:{name}"] = _flat(shard, value) if element_wise else value
    groups = engine.optimizer.param_groups
    state["options"] = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    return state


def room_for(engine: Engine, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of the engine's, to be filled from a checkpoint that has `saved`: sizes and dtypes by entry.

    Raises:
        ValueError: the checkpoint is of another model.
    """
    _check_same_model(engine, saved)
    state = _weights(engine) | {"options": None}
    keys = _saved_keys(saved)
    for name, shard in _named(engine, engine.shards()):
        for key in keys[name]:
            about = saved[f"state:{key}:{name}"]
            room: Any = None  # for what is no tensor
            if isinstance(about, TensorStorageMetadata) and about.size == (shard.shape.numel(),):
                room = _flat(shard, torch.empty_like(shard.values, dtype=about.properties.dtype))
            elif isinstance(about, TensorStorageMetadata):
                room = torch.empty(about.size, dtype=about.properties.dtype)
            state[f"state:{key}:{name}"] = room
    return state


def put_back(engine: Engine, state: Mapping[str, Any]) -> None:
    """Give the engine a state that has been filled. Call this on every rank."""
    keys = _saved_keys(state)
    states: dict[Parameter, dict[str, Any]] = {}
    for name, shard in _named(engine, [*engine.shards(), *engine.frozen]):
        values = {"param": state[f"param:{name}"]} | {key: state[f"state:{key}:{name}"] for key in keys[name]}
        shaped = {k: v.values.view(shard.values.shape) if isinstance(v, FlatShard) else v for k, v in values.items()}
        shard.values.data.copy_(shaped.pop("param"))
        states[shard.values] = shaped
    set_state(engine.optimizer, states, state["options"])
    engine.gather_parameters()


def _weights(engine: Engine) -> dict[str, Any]:
    """Return what this rank owns of each parameter, in fp32 if it is trained, and all buffers."""
    engine.share_buffers()
    entries = engine.module.state_dict(keep_vars=True).items()
    buffers = {f"buffer:{name}": value for name, value in entries if not isinstance(value, Parameter)}
    shards = _named(engine, [*engine.shards(), *engine.frozen])
    return buffers | {f"param:{name}": _flat(shard, shard.values) for name, shard in shards}


def _saved_keys(entries: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the KEYs in `state:KEY:NAME`, by NAME."""
    keys: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.startswith("state:"):
            _, key, name = entry.split(":", 2)
            keys[name].append(key)
    return keys


def _check_same_model(engine: Engine, saved: Mapping[str, Any]) -> None:
    ours = engine.numels
    theirs = {entry.removeprefix("param:"): about for entry, about in saved.items() if entry.startswith("param:")}
    sizes = {name: about.size.numel() for name, about in theirs.items()}
    if sizes != ours:
        differing = sorted(name for name in sizes.keys() | ours.keys() if sizes.get(name) != ours.get(name))
        listed = [
            f"{name} ({sizes.get(name, 'no')} elements there, {ours.get(name, 'none')} here)" for name in differing
        ]
        raise ValueError(
            f"the checkpoint is of another model: {', '.join(listed[:3])}{', ...' if len(listed) > 3 else ''}. "
            "Make the model as it was made for the run that saved it."
        )


# -- torch's planners, which would take only tensors -------------------------------------------------------------------


class SavePlanner(DefaultSavePlanner):
    """Saves a flat dict whose values may be shards."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Any:
        value = self.state_dict[index.fqn]
        return value.values if isinstance(value, FlatShard) else super().lookup_object(index)


class LoadPlanner(DefaultLoadPlanner):
    """Loads a flat dict whose values may be shards, from whatever shards were saved."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        value = self.state_dict[index.fqn]
        return value.values if isinstance(value, FlatShard) else super().lookup_tensor(index)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        # Numbers, texts and collections of them, and no code that a file might bring along.
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)
