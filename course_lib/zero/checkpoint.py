"""Checkpoints: each rank writes what it owns; any number of ranks, at any stage, goes on from there.

    folder         holds one checkpoint, in a numbered folder within it, and the file `latest` with that number
    sharded        a checkpoint of pieces (see pieces.py): nobody needs more memory for it than is in use anyway
    whole          a checkpoint as `state_dict()` and `optimizer_state_dict()` give it, for readers that know no pieces

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

# torch.distributed.checkpoint, and pieces.py that is made for it, take a second to import: they are imported below,
# for those who do save or load.


def save_checkpoint(
    engine: Engine, folder: str | Path, *, extra: Mapping[str, Any] | None = None, whole: bool = False
) -> None:
    """Write the engine's state, and make it the checkpoint in `folder` once all of it is there.

    To be called on every rank of the engine's process group; with hybrid sharding, on all ranks there are.

    Args:
        engine: at any stage.
        folder: on a file system that every rank sees.
        extra: numbers and texts for `load_checkpoint` to give back, the same on every rank: `{"step": 100}`.
        whole: write whole tensors rather than pieces. `torch.distributed.checkpoint.format_utils.dcp_to_torch_save`
            makes one file of that, with "model" and "optimizer", which plain torch reads.
    """
    import torch.distributed.checkpoint as dcp

    from .pieces import SavePieces, pieces_of

    folder, group = Path(folder), _group(engine)
    name = [str(1 + max(_numbers(folder), default=0))]
    dist.broadcast_object_list(name, group_src=0, group=group)
    path, notes = folder / name[0], dict(extra or {})
    if whole:
        state = {"model": engine.state_dict(), "optimizer": engine.optimizer_state_dict(), "extra": notes}
    else:
        state = pieces_of(engine) | {"extra": notes}
    dcp.save(state, checkpoint_id=path, planner=SavePieces(), process_group=group)
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

    from .pieces import LoadPieces, put_back, room_for

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
    dcp.load(state, checkpoint_id=path, planner=LoadPieces(), process_group=_group(engine))
    if whole:
        engine.load_state_dict(state["model"])
        engine.load_optimizer_state_dict(state["optimizer"])
    else:
        put_back(engine, state)
    extra: dict[str, Any] = state["extra"]
    return extra


def _group(engine: Engine) -> dist.ProcessGroup | None:
    return engine.process_group if engine.replicate_group is None else dist.group.WORLD


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
