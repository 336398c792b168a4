"""Checkpoints: each rank writes what it owns; any number of ranks, at any stage, goes on from there.

    folder         holds one checkpoint, in a numbered folder within it, and the file `latest` with that number
    sharded        a checkpoint of shards (see dcp.py): no rank needs more memory for it than is in use anyway
    whole          a checkpoint as `state_dict()` and `optimizer_state_dict()` give it, which plain torch reads

A checkpoint counts from the moment that `latest` names it, and `latest` is replaced in one go when every rank has
written all its part. If one is killed before that, the checkpoint before stays the latest.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .engine import Engine

# torch.distributed.checkpoint, which dcp.py needs, takes a second to import: only a rank that saves or loads does.


def save_checkpoint(
    engine: Engine, folder: str | Path, *, extra: Mapping[str, Any] | None = None, whole: bool = False
) -> None:
    """Write the engine's state, and make it the checkpoint in `folder` once all of it is there.

    Call this on every rank of the engine's process group; with hybrid sharding, on all ranks there are.

    Args:
        engine: at any stage.
        folder: on a file system that every rank sees.
        extra: numbers and texts for `load_checkpoint` to give back, the same on every rank: `{"step": 100}`.
        whole: write whole tensors rather than shards. `torch.distributed.checkpoint.format_utils.dcp_to_torch_save`
            makes one file of that, with "model" and "optimizer", which plain torch reads.
    """
    import torch.distributed.checkpoint as dcp

    from .dcp import SavePlanner, state_of

    folder, group = Path(folder), engine.ranks.everyone
    name = [str(1 + max(_numbers(folder), default=0))]
    dist.broadcast_object_list(name, group_src=0, group=group)
    path = folder / name[0]
    if whole:
        state = {"model": engine.state_dict(), "optimizer": engine.optimizer_state_dict(), "extra": dict(extra or {})}
    else:
        state = state_of(engine) | {"extra": dict(extra or {})}
    dcp.save(state, checkpoint_id=path, planner=SavePlanner(), process_group=group)
    # It has returned, so every rank has written.
    if dist.get_rank(group) == 0:
        _replace(folder / "latest", path.name)
        for number in set(_numbers(folder)) - {int(path.name)}:
            shutil.rmtree(folder / str(number))
    dist.barrier(group=group)


def load_checkpoint(engine: Engine, folder: str | Path) -> dict[str, Any]:
    """Bring the engine to where another, with any number of ranks and at any stage, was saved.

    To be called on the ranks that `save_checkpoint` is called on.

    Returns:
        What was saved as `extra`.

    Raises:
        FileNotFoundError: there is no checkpoint in `folder`.
        ValueError: it is of another model, or its optimizer has other groups.
    """
    import torch.distributed.checkpoint as dcp

    from .dcp import LoadPlanner, put_back, room_for

    latest = Path(folder) / "latest"
    if not latest.exists():
        raise FileNotFoundError(
            f"there is no checkpoint in {folder}: it has no file `latest`, which is written when all ranks are done. "
            "Look whether save_checkpoint was given the same folder, and whether it returned."
        )
    path = latest.with_name(latest.read_text(encoding="utf-8"))
    saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    whole = "model" in saved
    state: dict[str, Any] = {"model": None, "optimizer": None} if whole else room_for(engine, saved)
    state["extra"] = None
    dcp.load(state, checkpoint_id=path, planner=LoadPlanner(), process_group=engine.ranks.everyone)
    if whole:
        engine.load_state_dict(state["model"])
        engine.load_optimizer_state_dict(state["optimizer"])
    else:
        put_back(engine, state)
    extra: dict[str, Any] = state["extra"]
    return extra


def _numbers(folder: Path) -> list[int]:
    """Of the checkpoints in `folder`: the latest, and any that was never finished."""
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.exists() else []


def _replace(file: Path, text: str) -> None:
    """Put `text` in place of what `file` has, in one go."""
    draft = file.with_suffix(".draft")
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)
