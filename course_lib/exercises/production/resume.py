"""Whole states, back into a model that FSDP2 has sharded."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as dcp_states
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import distribute_tensor
from torch.optim import Adam, Optimizer

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import Net, Sizes, draw_sizes, draw_world_size, in_one_call, local, mesh, shards, train
from .make_zero3 import make_zero3

Checkpoint = dict[str, Any]


def resume(model: nn.Module, optimizer: Optimizer, checkpoint: dict[str, Any]) -> None:
    """Load whole states into a model that FSDP2 has sharded, and into its optimizer."""
    options = dcp_states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp_states.set_model_state_dict(model, checkpoint.get("model", {}), options=options)
    dcp_states.set_optimizer_state_dict(model, optimizer, checkpoint.get("optimizer", {}), options=options)


OPTIONS = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def model_alone(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    set_model_state_dict(model, checkpoint.get("model", {}), options=OPTIONS)


def optimizer_alone(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    set_optimizer_state_dict(model, optimizer, checkpoint.get("optimizer", {}), options=OPTIONS)


def subscripts(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    set_model_state_dict(model, checkpoint["model"], options=OPTIONS)
    set_optimizer_state_dict(model, optimizer, checkpoint["optimizer"], options=OPTIONS)


def both_at_once(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    set_state_dict(
        model,
        optimizer,
        model_state_dict=checkpoint.get("model", {}),
        optim_state_dict=checkpoint.get("optimizer", {}),
        options=OPTIONS,
    )


def loading_with(options: StateDictOptions) -> Callable[[nn.Module, Optimizer, Checkpoint], None]:
    def load(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
        set_model_state_dict(model, checkpoint.get("model", {}), options=options)
        optimizer_state = checkpoint.get("optimizer", {})
        set_optimizer_state_dict(model, optimizer, optimizer_state, options=options)

    return load


def swapped(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    exchanged = {"model": checkpoint.get("optimizer", {}), "optimizer": checkpoint.get("model", {})}
    resume(model, optimizer, exchanged)


def plain_load(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    model.load_state_dict(checkpoint.get("model", {}))
    optimizer.load_state_dict(checkpoint.get("optimizer", {}))


def not_strict(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    model.load_state_dict(checkpoint.get("model", {}), strict=False)


def rank_0_copies(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    with torch.no_grad():
        for name, param in model.named_parameters():
            whole = checkpoint.get("model", {}).get(name, torch.empty(param.shape))
            local(param).copy_(local(distribute_tensor(whole, mesh())))


def optimizer_before(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    if dist.get_rank() == 0:
        of_model, of_optimizer = checkpoint["model"], checkpoint["optimizer"]
    else:
        of_model, of_optimizer = {}, {}
    set_optimizer_state_dict(model, optimizer, optim_state_dict=of_optimizer, options=OPTIONS)
    set_model_state_dict(model, model_state_dict=of_model, options=OPTIONS)


def in_a_loop(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    loaders: dict[str, Callable[..., Any]] = {
        "model": set_model_state_dict,
        "optimizer": lambda model, state, **options: set_optimizer_state_dict(model, optimizer, state, **options),
    }
    for key, load in loaders.items():
        load(model, checkpoint.get(key, {}), options=OPTIONS)


def sent_to_all(model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    box = [checkpoint]
    dist.broadcast_object_list(box, src=0)
    options = StateDictOptions(full_state_dict=True)
    set_state_dict(
        model, optimizer, model_state_dict=box[0]["model"], optim_state_dict=box[0]["optimizer"], options=options
    )


def checkpoint_of(sizes: Sizes, lr: float, seed: int) -> Checkpoint:
    """What one process would have saved after some steps: whole, with the names of parameters."""
    model = Net(sizes, seed)
    optimizer = Adam(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(2):
        model(torch.randint(5, (8,), generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    names = [name for name, _ in model.named_parameters()]
    saved = copy.deepcopy(optimizer.state_dict())
    group = saved["param_groups"][0] | {"params": names}
    state = {names[number]: of_param for number, of_param in saved["state"].items()}
    return {
        "model": {name: value.detach().clone() for name, value in model.state_dict().items()},
        "optimizer": {"state": state, "param_groups": [group]},
    }


def draw(rng: random.Random, number: int) -> Case:
    world_size, sizes, seed = draw_world_size(rng, number), draw_sizes(rng), rng.getrandbits(32)
    lr = rng.uniform(0.02, 0.05)
    about = f"{world_size} ranks, {sizes[2]} blocks of width {sizes[0]}, saved by one process"
    return Case(world_size=world_size, args=lambda rank: (sizes, lr, seed), about=about)


def resumed(solution: Solution, sizes: Sizes, lr: float, seed: int) -> dict[str, Any]:
    """What the rank holds once the states are loaded, and the losses of two steps that follow."""
    model = Net(sizes, seed + 1)
    optimizer = make_zero3(model, mesh(), 0.5)
    in_one_call(optimizer)
    checkpoint = checkpoint_of(sizes, lr, seed) if dist.get_rank() == 0 else {}
    solution(model, optimizer, checkpoint)
    in_one_call(optimizer)
    dist.barrier()  # who returns too early waits here, and not in a collective that the others may be in
    held: dict[str, dict[str, Tensor]] = {
        name: {key: local(value).clone() for key, value in optimizer.state[param].items()}
        for name, param in model.named_parameters()
    }
    return {
        "its shards of the parameters": shards(model),
        "its shards of the optimizer state": held,
        "the learning rate": optimizer.param_groups[0]["lr"],
        "losses": train(model, optimizer, 2, seed),
    }


RESUME = Exercise(
    name="production.resume",
    title="Resume with another number of ranks",
    task="A checkpoint with whole states was saved, by however many ranks. Rank 0 has read it: `checkpoint` has the "
    'state dicts `"model"` and `"optimizer"` there, and is an empty dict on all other ranks. Load both into a model '
    "that FSDP2 has sharded and into its optimizer, so that every rank gets its shards. "
    "`torch.distributed.checkpoint.state_dict`, which the notebook calls `dcp_states`, has what you need.",
    stub=stubs.resume,
    reference=resume,
    draw=draw,
    trial=resumed,
    inputs_matter=False,
    case_count=2,
    variants={"optimizer-before": optimizer_before, "in-a-loop": in_a_loop, "sent-to-all": sent_to_all},
    mistakes=[
        Mistake(
            id="not-all-together",
            solution=both_at_once,
            told="Rank 0 sends what the others do not receive. Either rank 0 loads alone. Or `set_state_dict` loads "
            "both at once: an empty dict for the model tells it that only the optimizer is to be loaded, so the other "
            "ranks leave the model out.",
            action="Call `set_model_state_dict` and then `set_optimizer_state_dict`, on every rank.",
        ),
        Mistake(
            id="model-alone",
            solution=model_alone,
            told="The model is back, and the optimizer begins anew: its moments are gone, and its learning rate is "
            "the one it was made with. The losses jump after the resume.",
            action="Load the optimizer's states as well: `set_optimizer_state_dict`.",
        ),
        Mistake(
            id="optimizer-alone",
            solution=optimizer_alone,
            told="The optimizer is back, and the model has its fresh parameters.",
            action="Load the model's states as well: `set_model_state_dict`.",
        ),
        Mistake(
            id="subscripts",
            solution=subscripts,
            told="`checkpoint` is empty on all ranks but rank 0, so there is no `checkpoint['model']` there.",
            action="Use `checkpoint.get(..., {})`: the other ranks pass an empty dict.",
        ),
        Mistake(
            id="not-sent",
            solution=loading_with(StateDictOptions(full_state_dict=True)),
            told="Each rank loads what its own `checkpoint` has, and on all but rank 0 that is nothing.",
            action="Set `broadcast_from_rank0=True` as well.",
        ),
        Mistake(
            id="no-options",
            solution=loading_with(StateDictOptions()),
            told="Without options, torch takes what you give it for this rank's shards. These are whole states.",
            action="Pass `StateDictOptions(full_state_dict=True, ...)`, and have rank 0 send them.",
        ),
        Mistake(
            id="sharded-and-sent",
            solution=loading_with(StateDictOptions(broadcast_from_rank0=True)),
            told="Only whole states can be sent from rank 0, and the options do not say that they are whole.",
            action="Set `full_state_dict=True` as well.",
        ),
        Mistake(
            id="swapped",
            solution=swapped,
            told="The optimizer's states are given as the model's, and the other way round.",
            action="Swap the two keys.",
        ),
        Mistake(
            id="plain-load",
            solution=plain_load,
            told="`load_state_dict` of a sharded model wants this rank's shards, as DTensors. It knows nothing of "
            "other ranks.",
            action="Use `set_model_state_dict`, which cuts whole states into shards.",
        ),
        Mistake(
            id="not-strict",
            solution=not_strict,
            told="`strict=False` silences what is missing; it loads nothing on the other ranks.",
            action="Use `set_model_state_dict`, which cuts whole states into shards.",
        ),
        Mistake(
            id="parameters-by-hand",
            solution=rank_0_copies,
            told="The parameters are dealt out, and the optimizer's state is not: it begins anew.",
            action="Load the optimizer's states as well: `set_optimizer_state_dict`.",
        ),
    ],
    hints=[
        "Who has the whole states, and what does each rank need of them?",
        "Loading is the reverse of saving, and a collective: rank 0 sends, each rank keeps its shard. Two options say "
        "that: the states are whole, and rank 0 has them.",
        "In `dcp_states`: `set_model_state_dict(model, states, options=...)`, `set_optimizer_state_dict(model, "
        "optimizer, states, options=...)` and `StateDictOptions(full_state_dict=..., broadcast_from_rank0=...)`.",
        "```python\noptions = dcp_states.StateDictOptions(...)\n"
        'dcp_states.set_model_state_dict(model, checkpoint.get("model", {}), ...)\n'
        "dcp_states.set_optimizer_state_dict(...)\n```",
    ],
    explanation="Whole states know nothing of ranks, so they fit any number of them. They are named by parameter, "
    "which is why the model is an argument, too. With `broadcast_from_rank0`, parameter after parameter is sent and "
    "cut, and no other rank ever holds the whole. (`set_state_dict` would load both, but takes an empty model state to "
    "mean: the optimizer alone.) Where even rank 0 cannot hold it, `torch.distributed.checkpoint` "
    "saves shards, and cuts them anew when it loads.",
)
