"""Checkpoints: each rank writes what it owns; any number of ranks, at any stage, goes on from there.

    folder         holds one checkpoint, in a numbered folder within it, and the file `latest` with that number
    RANK.pt        what one rank owns, in pieces (see optimizer_state.py). A rank that loads maps the files of all
                   ranks into memory, and reads only what overlaps with its own shards

A checkpoint counts from the moment that `latest` names it, and `latest` is replaced in one go when every rank has
written its file. If a rank is killed before that, the checkpoint before stays the latest.
"""

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils._pytree import tree_map_only

from .engine import Engine
from .optimizer_state import cut, piece_of, put, whole_groups


def save_checkpoint(engine: Engine, folder: str | Path, *, extra: Mapping[str, Any] | None = None) -> None:
    """Write the engine's state, and make it the checkpoint in `folder` once all of it is there.

    Call this on every rank of the engine's process group. Buffers, and the extra states of modules, are the first
    rank's.

    Args:
        engine: at any stage.
        folder: on a file system that every rank sees. If the model is cut over other ranks, too, each engine's process
            group needs a folder of its own: `Path("checkpoint") / str(mesh.get_local_rank("tensor"))`.
        extra: numbers and texts for `load_checkpoint` to return, the same on every rank: `{"step": 100}`.

    Raises:
        ValueError: `extra`, or a module's `get_extra_state()`, contains what `torch.load` refuses with
            `weights_only=True`; or a group without a rank of this one has saved in `folder` in this run.
    """
    _check_loadable("extra", dict(extra or {}))
    extra_states = {}
    for name, module in _with_extra_state(engine).items():
        extra_states[name] = tree_map_only(Tensor, lambda value: value.detach().cpu(), module.get_extra_state())
        _check_loadable(f"the extra state of a {type(module).__name__}", extra_states[name])
    folder, ranks, group = Path(folder), engine.ranks, engine.ranks.process_group
    if dist.get_rank(group) == 0:
        _check_alone(folder, dist.get_process_group_ranks(group))
    number = [1 + max(_numbers(folder), default=0)]
    dist.broadcast_object_list(number, group_src=0, group=group)
    path = folder / str(number[0])
    path.mkdir(parents=True, exist_ok=True)
    buffers = {name: buffer.cpu() for name, buffer in _buffers(engine).items()}
    if dist.get_rank(group) == ranks.rank:  # in DataParallel, the others hold the same
        names = {param: name for name, param in engine.module.named_parameters()}
        pieces = [(names[shard.param], piece_of(engine, shard)) for shard in (*engine.shards(), *engine.frozen)]
        state = {"pieces": pieces, "buffers": buffers, "numels": _numels(engine), "extra": dict(extra or {})}
        more = {"extra_states": extra_states, "param_groups": whole_groups(engine)}
        with (path / f"{ranks.rank}.pt").open("wb") as stream:
            torch.save(state | more, stream)
            os.fsync(stream.fileno())
    dist.barrier(group=group)
    if dist.get_rank(group) == 0:
        _replace(folder / "latest", path.name)
        for old in set(_numbers(folder)) - set(number):
            shutil.rmtree(folder / str(old))
    dist.barrier(group=group)


def load_checkpoint(engine: Engine, folder: str | Path) -> dict[str, Any]:
    """Bring the engine to where a different one, with any number of ranks and at any stage, was saved.

    Call this on the ranks that would call `save_checkpoint`.

    Returns:
        What was saved as `extra`.

    Raises:
        FileNotFoundError: there is no checkpoint in `folder`: it has no file `latest`.
        ValueError: it is of another model, or its optimizer has other groups.
    """
    latest = Path(folder) / "latest"
    files = sorted(latest.with_name(latest.read_text(encoding="utf-8")).glob("*.pt"))  # the first is 0.pt
    saved = [torch.load(file, mmap=True, weights_only=True) for file in files]
    theirs, ours = saved[0]["numels"], _numels(engine)
    if differing := sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)):
        raise ValueError(
            f"the checkpoint is of another model: {differing[0]} has {theirs.get(differing[0], 'no')} elements there "
            f"and {ours.get(differing[0], 'none')} here. Make the model as it was made for the run that saved it."
        )
    pieces = defaultdict(list)
    for name, piece in (entry for state in saved for entry in state["pieces"]):
        pieces[name].append(piece)
    names = {param: name for name, param in engine.module.named_parameters()}
    shards = (*engine.shards(), *engine.frozen)
    mine = {shard: cut(pieces[names[shard.param]], shard.begin, shard.values.numel()) for shard in shards}
    put(engine, mine, saved[0]["param_groups"])
    # What the caller and modules keep is copied: the next checkpoint removes the files that are mapped.
    for name, buffer in _buffers(engine).items():
        buffer.copy_(saved[0]["buffers"][name])
    for name, module in _with_extra_state(engine).items():
        if name in saved[0].get("extra_states", {}):
            module.set_extra_state(deepcopy(saved[0]["extra_states"][name]))
    engine.gather_parameters()
    extra: dict[str, Any] = deepcopy(saved[0]["extra"])
    return extra


def _numels(engine: Engine) -> dict[str, int]:
    return {name: engine.shapes[param].numel() for name, param in engine.module.named_parameters()}


def _buffers(engine: Engine) -> dict[str, Tensor]:
    """Return the model's own buffers, as far as they belong to its state."""
    engine.share_buffers()
    state = engine.module.state_dict(keep_vars=True)
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}  # an extra state may be one
    return {
        key: value
        for key, value in tensors.items()
        if not isinstance(value, Parameter) and key.rpartition(".")[2] != "_extra_state"
    }


def _with_extra_state(engine: Engine) -> dict[str, nn.Module]:
    """Return the modules that keep a state besides parameters and buffers."""
    modules = engine.module.named_modules()
    return {name: module for name, module in modules if type(module).get_extra_state is not nn.Module.get_extra_state}


def _check_loadable(what: str, value: Any) -> None:
    torch.save(value, trial := BytesIO())
    trial.seek(0)
    if refused := torch.serialization.get_unsafe_globals_in_checkpoint(trial):
        raise ValueError(
            f"{what} contains a {refused[0]}, which load_checkpoint would refuse. Save numbers, texts and tensors: "
            "float(loss) instead of a NumPy scalar, str(path) instead of a Path."
        )


def _check_alone(folder: Path, ranks: list[int]) -> None:
    """Refuse a folder in which different ranks save: the store of the run, which all groups share, has its ranks."""
    store = dist.distributed_c10d._get_default_store()
    theirs = json.loads(store.compare_set(f"checkpoint in {folder.resolve()}", "", json.dumps(ranks)))
    if not set(ranks) & set(theirs):
        raise ValueError(
            f"rank {dist.get_rank()}: ranks {ranks} save in {folder}, where ranks {theirs} have saved. Each group "
            "would replace the files of the other. Give each group a folder of its own, such as "
            'Path(folder) / str(mesh.get_local_rank("tensor")), and load from it.'
        )


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in `folder`: the latest, and any that was never finished."""
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.exists() else []


def _replace(file: Path, text: str) -> None:
    """Replace the text of `file` in one go."""
    draft = file.with_suffix(".draft")
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)
