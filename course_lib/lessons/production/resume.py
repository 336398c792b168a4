"""Whole states, loaded into a model that FSDP2 has sharded."""

import random
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as dcp_states
from torch import nn
from torch.optim import Adam, Optimizer

from ...exercises import Case, Exercise, Solution
from .data import Net, Sizes, draw_world, local, mesh, shards
from .make_zero3 import make_zero3


def draw(rng: random.Random, number: int) -> Case:
    (world_size, (width, _)), lr, seed = draw_world(rng, number), rng.uniform(0.02, 0.05), rng.getrandbits(32)
    what = f"a block of width {width}, saved by one process"
    return Case(world_size=world_size, args=lambda rank: ((width, 1), lr, seed), what=what)


def resumed(solution: Solution, sizes: Sizes, lr: float, seed: int) -> dict[str, Any]:
    """Return what the rank holds after the solution has loaded the states."""
    model = Net(sizes, seed + 1)
    optimizer = make_zero3(model, mesh(), 0.5)
    optimizer.param_groups[0]["fused"] = True  # one call for all parameters: with DTensors, first calls are slow
    solution(model, optimizer, saved(sizes, lr, seed) if dist.get_rank() == 0 else {})
    dist.barrier()  # a rank that returns too early waits here, and not in a collective that other ranks may call
    held = {
        name: {key: local(value).clone() for key, value in optimizer.state[param].items()}
        for name, param in model.named_parameters()
    }
    return {
        "its shards of the parameters": shards(model),
        "its shards of the optimizer state": held,
        "the learning rate": optimizer.param_groups[0]["lr"],
    }


def saved(sizes: Sizes, lr: float, seed: int) -> dict[str, Any]:
    """Return the checkpoint of one process after a step: whole states, by the names of parameters."""
    model = Net(sizes, seed)
    optimizer = Adam(model.parameters(), lr=lr)
    model(torch.arange(5)).square().mean().backward()
    optimizer.step()
    model_state, state = dcp_states.get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": state}


exercise = Exercise("production.resume", title="Resume with a different number of ranks", draw=draw, trial=resumed,
    inputs_matter=False, case_count=2, task="""
    A checkpoint contains whole states, which any number of ranks may have saved. Rank 0 has read it: there,
    `checkpoint` has the state dicts `"model"` and `"optimizer"`. On all other ranks it is an empty dict. Load both into
    a model that FSDP2 has sharded, and into its optimizer, so that every rank gets its shards.
    `torch.distributed.checkpoint.state_dict`, which the notebook imports as `dcp_states`, has the functions for it.
    """, hints="""
    Which rank has the whole states, and which part of them does each rank need?

    Loading is the reverse of saving, and a collective: rank 0 sends, and each rank keeps its shard. Two options say so:
    the states are whole, and rank 0 has them.

    In `dcp_states`: `set_model_state_dict(model, states, options=...)`, `set_optimizer_state_dict(model, optimizer,
    states, options=...)` and `StateDictOptions(full_state_dict=..., broadcast_from_rank0=...)`.

    ```python
    options = dcp_states.StateDictOptions(...)
    dcp_states.set_model_state_dict(model, checkpoint.get("model", {}), ...)
    dcp_states.set_optimizer_state_dict(...)
    ```
    """, explanation="""
    Whole states do not depend on ranks, so they fit any number of them. The optimizer's states are named by parameter;
    this is why `set_optimizer_state_dict` needs the model too. With `broadcast_from_rank0`, rank 0 sends parameter
    after parameter, each rank cuts out its shard, and no other rank ever holds the whole. `set_state_dict` would load
    both at once, but an empty model state means to it that only the optimizer is loaded. If even rank 0 cannot hold the
    whole, `torch.distributed.checkpoint` saves shards, and cuts them again when it loads.""")


@exercise
def resume(model: nn.Module, optimizer: Optimizer, checkpoint: dict[str, Any]) -> None:
    """Load whole states into a model that FSDP2 has sharded, and into its optimizer.

    On rank 0, `checkpoint` has the state dicts "model" and "optimizer", whole. On all other ranks
    it is empty.
    """
    options = dcp_states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp_states.set_model_state_dict(model, checkpoint.get("model", {}), options=options)
    dcp_states.set_optimizer_state_dict(model, optimizer, checkpoint.get("optimizer", {}), options=options)


MODEL = 'dcp_states.set_model_state_dict(model, checkpoint.get("model", {}), options=options)'
OPTIMIZER = 'dcp_states.set_optimizer_state_dict(model, optimizer, checkpoint.get("optimizer", {}), options=options)'

exercise.edit("not-all-together", {MODEL: 'dcp_states.set_state_dict(model, optimizer, options=options,\n'
    '    model_state_dict=checkpoint.get("model", {}), optim_state_dict=checkpoint.get("optimizer", {}))',
    f"\n{OPTIMIZER}": ""}, """
    The ranks do not load the same states, so rank 0 sends what other ranks do not receive. If you used
    `set_state_dict`: an empty dict for the model means that only the optimizer is loaded, so the other ranks leave the
    model out. Next: call `set_model_state_dict` and then `set_optimizer_state_dict`, on every rank.""")

exercise.edit("model-alone", {f"\n{OPTIMIZER}": ""}, """
    You load the model, and the optimizer starts again: it has no moments, and its learning rate is the one with which
    it was made. The losses jump after such a resume.
    Next: load the optimizer's states as well: `set_optimizer_state_dict`.""")

exercise.edit("optimizer-alone", {f"{MODEL}\n": ""}, """
    You load the optimizer, and the model keeps its fresh parameters. Next: load the model's states as well:
    `set_model_state_dict`.""")

exercise.edit("subscripts", {'.get("model", {})': '["model"]', '.get("optimizer", {})': '["optimizer"]'}, """
    `checkpoint` is empty on all ranks except rank 0, so `checkpoint["model"]` does not exist there.
    Next: use `checkpoint.get(..., {})`: the other ranks pass an empty dict.""")

exercise.edit("not-sent", {", broadcast_from_rank0=True": ""}, """
    Each rank loads the states in its own `checkpoint`, which is empty on all ranks except rank 0.
    Next: set `broadcast_from_rank0=True` as well.""")

exercise.edit("sharded-and-sent", {"full_state_dict=True, ": ""}, """
    Rank 0 can only send whole states, and your options do not say that they are whole.
    Next: set `full_state_dict=True` as well.""")

exercise.edit("plain-load", {MODEL: 'model.load_state_dict(checkpoint.get("model", {}))',
    OPTIMIZER: 'optimizer.load_state_dict(checkpoint.get("optimizer", {}))'}, """
    `load_state_dict` of a sharded model expects this rank's shards, as DTensors, and receives nothing from other ranks.
    Next: use `set_model_state_dict`, which cuts whole states into shards.""")

exercise.variant_edit("optimizer-before", {MODEL: OPTIMIZER, OPTIMIZER: MODEL})


@exercise.variant
def sent_to_all(model: nn.Module, optimizer: Optimizer, checkpoint: dict[str, Any]) -> None:
    box = [checkpoint]
    dist.broadcast_object_list(box, src=0)
    options = dcp_states.StateDictOptions(full_state_dict=True)
    dcp_states.set_state_dict(
        model, optimizer, model_state_dict=box[0]["model"], optim_state_dict=box[0]["optimizer"], options=options
    )
