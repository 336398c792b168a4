"""FSDP2: units, and the optimizer that goes with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, Adam, Optimizer

from ..checking.rules import same_calls
from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import Net, Sizes, draw_sizes, draw_world_size, in_one_call, mesh, shards, train


def make_zero3(model: nn.Module, mesh: DeviceMesh, lr: float) -> Optimizer:
    """Shard `model` over `mesh` with FSDP2, and return an Adam that trains it."""
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.Adam(model.parameters(), lr=lr)


def units_of(choose: Callable[[Any], Iterable[Any]], **options: Any) -> Solution:
    """The right setup, with other units or options."""

    def make(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
        for unit in choose(model):
            fully_shard(unit, mesh=mesh, **options)
        return Adam(model.parameters(), lr=lr)

    return make


def optimizer_first(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
    optimizer = Adam(model.parameters(), lr=lr)
    make_zero3(model, mesh, lr)
    return optimizer


def of_the_blocks(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
    make_zero3(model, mesh, lr)
    return Adam(model.blocks.parameters(), lr=lr)


def learning_rate_lost(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
    make_zero3(model, mesh, lr)
    return Adam(model.parameters())


def sgd(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
    make_zero3(model, mesh, lr)
    return SGD(model.parameters(), lr=lr)


def nothing_returned(model: Any, mesh: DeviceMesh, lr: float) -> None:
    make_zero3(model, mesh, lr)


def the_model_returned(model: Any, mesh: DeviceMesh, lr: float) -> Any:
    make_zero3(model, mesh, lr)
    return model


def layers(model: Any) -> list[Any]:
    return [*(module for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding)), model]


def with_options(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
    for number in reversed(range(len(model.blocks))):
        model.blocks[number] = fully_shard(model.blocks[number], mesh=mesh, reshard_after_forward=True)
    sharded = fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return Adam([{"params": sharded.parameters()}], lr=lr)


def the_rest_by_itself(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
    """Every direct child that is no list of blocks goes with the root."""
    for name, child in model.named_children():
        if name == "blocks":
            for block in child:
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Adam((param for param in model.parameters()), lr)


def draw(rng: random.Random, number: int) -> Case:
    world_size, sizes, seed = draw_world_size(rng, number), draw_sizes(rng), rng.getrandbits(32)
    lr = rng.uniform(0.02, 0.05)
    about = f"{world_size} ranks, {sizes[2]} blocks of width {sizes[0]}, lr {lr:.3f}"
    return Case(world_size=world_size, args=lambda rank: (sizes, lr, seed), about=about)


def trained(solution: Solution, sizes: Sizes, lr: float, seed: int) -> dict[str, Any]:
    """Losses of two steps, and what the rank then holds of each parameter."""
    model = Net(sizes, seed)
    optimizer = solution(model, mesh(), lr)
    in_one_call(optimizer)
    return {"losses": train(model, optimizer, 2, seed), "what the rank holds": shards(model)}


MAKE_ZERO3 = Exercise(
    name="production.make_zero3",
    title="Units for FSDP2",
    task="Shard the model over `mesh` with `fully_shard`, and return an `Adam` with learning rate `lr` for it. The "
    "model has `model.blocks`, and an embedding and a head besides. Each block shall be a unit by itself, which is "
    "gathered for forward, freed, and gathered again for backward. The rest shall be one unit more; it is in use at "
    "the end of forward and at the beginning of backward, and stays whole in between, which is FSDP2's default.",
    stub=stubs.make_zero3,
    reference=make_zero3,
    draw=draw,
    trial=trained,
    inputs_matter=False,
    case_count=2,
    rules=[same_calls()],
    variants={"with-options": with_options, "by-name": the_rest_by_itself},
    mistakes=[
        Mistake(
            id="one-unit",
            solution=units_of(lambda model: [model]),
            told="The whole model is one unit: it is gathered in one piece before forward, and stays until backward "
            "is done. Between steps it is sharded; during a step each rank holds all of it.",
            action="Shard the blocks one by one first, then the model.",
        ),
        Mistake(
            id="blocks-only",
            solution=units_of(lambda model: model.blocks),
            told="The embedding and the head belong to no unit. Each rank keeps them whole, and nobody averages their "
            "gradients: the ranks drift apart.",
            action="After the blocks, call `fully_shard` on the model, which takes what is left.",
        ),
        Mistake(
            id="blocks-as-one",
            solution=units_of(lambda model: [list(model.blocks), model]),
            told="A list of modules is one unit, so all blocks are gathered together.",
            action="Call `fully_shard` for each block.",
        ),
        Mistake(
            id="list-of-blocks",
            solution=units_of(lambda model: [model.blocks, model]),
            told="`model.blocks` is a ModuleList, which has no forward of its own. FSDP2 gathers before a forward.",
            action="Call `fully_shard` for each block in the list.",
        ),
        Mistake(
            id="every-layer",
            solution=units_of(layers),
            told="Each layer is a unit. That is right in its losses and slow: many small all-gathers, each with its "
            "latency.",
            action="Make each of `model.blocks` a unit, and nothing smaller.",
        ),
        Mistake(
            id="blocks-and-layers",
            solution=units_of(lambda model: [*model.blocks, model.embed, model.head, model]),
            told="Embedding and head are units of their own. They were to travel together.",
            action="Shard the blocks, then the model: that takes all that is left, in one unit.",
        ),
        Mistake(
            id="model-first",
            solution=units_of(lambda model: [model, *model.blocks]),
            told="The model comes first and takes all parameters into its one unit; nothing is left for the blocks.",
            action="Go from the inside to the outside: the blocks, then the model.",
        ),
        Mistake(
            id="not-freed",
            solution=units_of(lambda model: [*model.blocks, model], reshard_after_forward=False),
            told="With `reshard_after_forward=False` the blocks stay whole from forward to backward. That saves "
            "all-gathers and takes the memory that was to be saved.",
            action="Leave the option out for the blocks.",
        ),
        Mistake(
            id="root-freed",
            solution=units_of(lambda model: [*model.blocks, model], reshard_after_forward=True),
            told="The last unit is freed after forward, though backward needs it at once. So it is gathered once "
            "more, for nothing.",
            action="Leave the option out: FSDP2 frees all but the outermost unit.",
        ),
        Mistake(
            id="optimizer-first",
            solution=optimizer_first,
            told="The optimizer was made before the model was sharded. `fully_shard` makes new parameters, of which it "
            "knows nothing: it updates the old ones, and the model never learns.",
            action="Make the optimizer last.",
        ),
        Mistake(
            id="blocks-trained-only",
            solution=of_the_blocks,
            told="The optimizer has the parameters of the blocks alone: embedding and head are never updated.",
            action="Give it `model.parameters()`.",
        ),
        Mistake(
            id="learning-rate-lost",
            solution=learning_rate_lost,
            told="The learning rate is Adam's default, 0.001.",
            action="Pass `lr=lr`.",
        ),
        Mistake(
            id="sgd",
            solution=sgd,
            told="This is SGD; asked for is Adam.",
            action="Make a `torch.optim.Adam`.",
        ),
        Mistake(
            id="nothing-returned",
            solution=nothing_returned,
            told="The model is sharded rightly, and the function returns None. Its caller waits for an optimizer.",
            action="Return the optimizer.",
        ),
        Mistake(
            id="the-model-returned",
            solution=the_model_returned,
            told="You return the model. `fully_shard` changes it in place, so the caller has it already.",
            action="Return the optimizer.",
        ),
    ],
    hints=[
        "Which part of the model has to be whole at once? And who takes care of what is in no block?",
        "`fully_shard` makes one unit of a module's parameters, except those that are in units already. So the order "
        "decides. It also replaces parameters by sharded ones, in place.",
        "`fully_shard(module, mesh=mesh)`, for each block and for the model; `torch.optim.Adam(model.parameters(), "
        "lr=lr)`.",
        "```python\nfor block in ...:\n    fully_shard(..., mesh=mesh)\nfully_shard(..., mesh=mesh)\n"
        "return torch.optim.Adam(...)\n```",
    ],
    explanation="From the inside to the outside: each call takes the parameters that no call before it has taken. "
    "The outermost unit is special in two ways. It is not freed after forward, because backward begins with it. And "
    "its forward is the model's, so FSDP2 knows when a step begins. An optimizer for shards is an ordinary optimizer "
    "that is made after the sharding.",
)
