"""An engine's state in pieces, and how `torch.distributed.checkpoint` is to save and load these.

In this file

    piece          elements `begin` to `begin + len(values)` of a flattened tensor that has `total` of them
    state          a flat dict of what this rank owns: `param:NAME` and `state:KEY:NAME` in pieces (other values of the
                   optimizer's as they are), `buffer:NAME`, and `options`, the lr and so on of each group
    planner        tells torch.distributed.checkpoint what there is to save, or to load. By itself that knows only of
                   rectangular pieces; which saved ones overlap with one that is wanted, it finds out
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan, create_default_local_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.nn import Parameter

from .engine import Engine
from .flat import Bucket, Fragment
from .optimizer_state import is_element_wise, set_state


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """Some elements of a flattened tensor; `values` is read from and written to in place."""

    begin: int
    total: int
    values: Tensor

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """Where it lies in the whole."""
        return ChunkStorageMetadata(offsets=torch.Size([self.begin]), sizes=self.values.size())


# -- an engine's state -------------------------------------------------------------------------------------------------


def pieces_of(engine: Engine) -> dict[str, Any]:
    """The state. To be called on every rank."""
    state = _weights(engine)
    for name, bucket, fragment in _named(engine, engine.buckets):
        for key, value in engine.optimizer.state.get(fragment.values, {}).items():
            element_wise = is_element_wise(key, value, fragment.values.shape)
            state[f"state:{key}:{name}"] = _piece(bucket, fragment, value) if element_wise else value
    state["options"] = [
        {key: value for key, value in group.items() if key != "params"} for group in engine.optimizer.param_groups
    ]
    return state


def room_for(engine: Engine, saved: Mapping[str, Any]) -> dict[str, Any]:
    """A state of the engine's, to be filled from a checkpoint that has `saved`: sizes and dtypes by entry.

    Raises:
        ValueError: the checkpoint is of another model.
    """
    state = _weights(engine) | {"options": None}
    _check_same_model(engine, saved)
    keys = _saved_keys(saved)
    for name, bucket, fragment in _named(engine, engine.buckets):
        for key in keys[name]:
            about = saved[f"state:{key}:{name}"]
            room: Any = None  # for what is no tensor
            if isinstance(about, TensorStorageMetadata) and about.size == (bucket.numels[fragment.index],):
                room = _piece(bucket, fragment, torch.empty_like(fragment.values, dtype=about.properties.dtype))
            elif isinstance(about, TensorStorageMetadata):
                room = torch.empty(about.size, dtype=about.properties.dtype)
            state[f"state:{key}:{name}"] = room
    return state


def put_back(engine: Engine, state: Mapping[str, Any]) -> None:
    """Give the engine a state that has been filled. To be called on every rank."""
    for name, _, fragment in _named(engine, [*engine.buckets, *engine.frozen]):
        fragment.values.data.copy_(state[f"param:{name}"].values.view(fragment.values.shape))
    keys = _saved_keys(state)
    states: dict[Parameter, dict[str, Any]] = {}
    for name, _, fragment in _named(engine, engine.buckets):
        mine = {key: state[f"state:{key}:{name}"] for key in keys[name]}
        states[fragment.values] = {
            key: value.values.view(fragment.values.shape) if isinstance(value, Piece) else value
            for key, value in mine.items()
        }
    set_state(engine.optimizer, states, state["options"])
    engine.gather_parameters()


def _weights(engine: Engine) -> dict[str, Any]:
    """What this rank owns of each parameter, in fp32 where it is trained, and all buffers."""
    engine.share_buffers()
    entries = engine.module.state_dict(keep_vars=True).items()
    buffers = {f"buffer:{name}": value for name, value in entries if not isinstance(value, Parameter)}
    return buffers | {
        f"param:{name}": _piece(bucket, fragment, fragment.values)
        for name, bucket, fragment in _named(engine, [*engine.buckets, *engine.frozen])
    }


def _named(engine: Engine, buckets: Sequence[Bucket]) -> Iterator[tuple[str, Bucket, Fragment]]:
    names = {param: name for name, param in engine.module.named_parameters()}
    for bucket in buckets:
        for fragment in bucket.fragments:
            yield names[bucket.params[fragment.index]], bucket, fragment


def _piece(bucket: Bucket, fragment: Fragment, values: Tensor) -> Piece:
    return Piece(begin=fragment.begin, total=bucket.numels[fragment.index], values=values.detach().reshape(-1))


def _saved_keys(entries: Mapping[str, Any]) -> dict[str, list[str]]:
    """The KEYs in `state:KEY:NAME`, by NAME."""
    keys: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.startswith("state:"):
            _, key, name = entry.split(":", 2)
            keys[name].append(key)
    return keys


def _check_same_model(engine: Engine, saved: Mapping[str, Any]) -> None:
    names = {param: name for name, param in engine.module.named_parameters()}
    buckets = [*engine.buckets, *engine.frozen]
    ours = {names[p]: numel for bucket in buckets for p, numel in zip(bucket.params, bucket.numels, strict=True)}
    theirs = {entry.removeprefix("param:"): about for entry, about in saved.items() if entry.startswith("param:")}
    sizes = {name: about.size.numel() for name, about in theirs.items()}
    if sizes != ours:
        differing = sorted(name for name in sizes.keys() | ours.keys() if sizes.get(name) != ours.get(name))
        told = [f"{name} ({sizes.get(name, 'no')} elements there, {ours.get(name, 'none')} here)" for name in differing]
        raise ValueError(
            f"the checkpoint is of another model: {', '.join(told[:3])}{', ...' if len(told) > 3 else ''}. "
            "Make the model as it was made for the run that saved it."
        )


# -- planners ----------------------------------------------------------------------------------------------------------


class SavePieces(DefaultSavePlanner):
    """Saves a flat dict whose values may be pieces."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        others = {key: value for key, value in self.state_dict.items() if not isinstance(value, Piece)}
        items = create_default_local_save_plan(others, self.is_coordinator).items
        for key, piece in self.state_dict.items():
            if isinstance(piece, Piece):
                about = TensorWriteData(
                    chunk=piece.chunk,
                    properties=TensorProperties.create_from_tensor(piece.values),
                    size=torch.Size([piece.total]),
                )
                index = MetadataIndex(key, piece.chunk.offsets)
                items.append(WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=about))
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        value = self.state_dict[index.fqn]
        return value.values if isinstance(value, Piece) else super().lookup_object(index)


class LoadPieces(DefaultLoadPlanner):
    """Loads a flat dict whose values may be pieces, from whatever pieces were saved."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        others = {key: value for key, value in self.state_dict.items() if not isinstance(value, Piece)}
        items = create_default_local_load_plan(others, self.metadata).items
        for key, piece in self.state_dict.items():
            if isinstance(piece, Piece):
                saved: Any = self.metadata.state_dict_metadata[key]
                items += create_read_items_for_chunk_list(key, saved, [piece.chunk])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        value = self.state_dict[index.fqn]
        return value.values if isinstance(value, Piece) else super().lookup_tensor(index)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        # Numbers, texts and collections of them, and no code that a file might bring along.
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)
