"""Repair: two units of FSDP2 that share a weight."""


from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ...exercises import Exercise, Solution
from .data import Net, Sizes, a_step, draw_training, mesh, on_plain_tensors, shards


def two_steps(solution: Solution, sizes: Sizes, lr: float, seed: int, meshes: int) -> dict[str, Any]:
    """Make two steps with a model whose head multiplies by the embedding's weight."""
    model = Net(sizes, seed)
    model.head = nn.Linear(sizes[0], 5, bias=False)
    model.head.weight = model.embed.weight
    whole: dict[nn.Module, set[str]] = {model.embed: set(), model.blocks[0]: set()}
    for module in whole:
        module.register_forward_hook(lambda module, *_: whole[module].update(
            name for name, param in model.named_parameters() if not isinstance(param, DTensor)))
    update = on_plain_tensors(solution(model, mesh(meshes), lr))
    losses = [a_step(model, update, seed + step) for step in range(2)]
    return {
        "the head has the embedding's weight": model.head.weight is model.embed.weight,
        "the losses": losses,
        "what is whole while the embedding computes": sorted(whole[model.embed]),
        "what is whole while the first block computes": sorted(whole[model.blocks[0]]),
        "what the rank holds": shards(model),
    }


exercise = Exercise("production.tied_weights", title="Repair: tied weights", draw=draw_training, trial=two_steps,
    inputs_matter=False, case_count=2, task="""
    The head multiplies by the embedding's weight: `model.head.weight is model.embed.weight`. The program makes the
    embedding and the head two units, and FSDP2 raises an error in the first forward. Repair it. The weight stays tied
    and is sharded, and each block is still a unit by itself.""", hints="""
    To how many units can one parameter belong?

    A unit shards, gathers and frees its parameters, so each belongs to one unit, which can have several modules.

    `fully_shard` makes one unit of a list of modules. The outermost unit can also contain both.

    ```python
    fully_shard([..., ...], mesh=mesh)
    ```
    """, explanation="""
    A tied weight is one parameter with two names. One unit shards it, replaces it under both names, and reduces the sum
    of both uses' gradients. Two units would each have a shard. One unit has a price: the weight is whole from the
    embedding to the head, while all blocks compute. The outermost unit stays whole even from forward to backward.""")


@exercise
def shard_tied(model: nn.Module, mesh: DeviceMesh, lr: float) -> Optimizer:
    """Shard `model`, whose head has the embedding's weight, over `mesh` with FSDP2.

    Each block stays a unit. Return an Adam that trains the model.
    """
    fully_shard([model.embed, model.head], mesh=mesh)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.Adam(model.parameters(), lr)


TIED = "fully_shard([model.embed, model.head], mesh=mesh)\n"
BLOCKS = "for block in model.blocks:\n    fully_shard(block, mesh=mesh)\n"
ROOT = "fully_shard(model, mesh=mesh)\n"
TWO = "fully_shard(model.embed, mesh=mesh)\nfully_shard(model.head, mesh=mesh)\n"
COPY = "model.head.weight = nn.Parameter(model.embed.weight.detach().clone())\n"

exercise.start_edit({TIED: TWO})

exercise.edit("a-copy", {TIED: COPY + TWO}, """
    You untie the weights: the head gets a copy. Each has its own gradient and moments, so they differ after the first
    step. Next: keep one weight, and make one unit of both modules.""")

exercise.edit("ignored-by-the-head", {TIED: TWO.replace("head, mesh=mesh", "head, mesh=mesh, ignored_params={"
    "model.head.weight}"), ROOT: ROOT.replace("mesh=mesh", "mesh=mesh, ignored_params={model.head.weight}")}, """
    You exclude the weight from the head's unit. The embedding's unit has put a shard in its place, and the head keeps
    the old weight: whole, untied, and with gradients that are not averaged. Next: make one unit of both modules.""")

exercise.edit("head-to-the-root", {TIED: "fully_shard(model.embed, mesh=mesh)\n"}, """
    The embedding is a unit, and the outermost unit takes the head, so two units still share the weight.
    Next: give both modules to the same unit.""")

exercise.edit("blocks-only", {TIED: "", ROOT: ""}, """
    The embedding and the head belong to no unit. Each rank keeps their weight whole and updates it with its own
    gradient, so the ranks drift apart. Next: add a unit that contains both.""")

exercise.edit("optimizer-first", {TIED: "optimizer = torch.optim.Adam(model.parameters(), lr)\n" + TIED,
    "return torch.optim.Adam(model.parameters(), lr)": "return optimizer"}, """
    The model never learns: your optimizer holds tensors that get no gradients. If it is made before the units, these
    are the parameters that `fully_shard` replaces. Next: make the optimizer last, for `model.parameters()`.""")

exercise.edit("over-all-ranks", {"model.head], mesh=mesh": "model.head]", "(block, mesh=mesh)": "(block)",
    "(model, mesh=mesh)": "(model)"}, """
    You shard over all ranks, which is what `fully_shard` does without a mesh. The mesh can have fewer.
    Next: pass the mesh that the function is given to each call.""")

exercise.edit("default-lr", {"(model.parameters(), lr)": "(model.parameters())"}, """
    Your Adam has its default learning rate, 0.001. Next: make it with the learning rate that the function is given.""")

exercise.edit("one-unit", {TIED: "", BLOCKS: ""}, """
    Not each block is a unit by itself: others are whole, too, while the first one computes. Next: keep a unit for each
    block.""")

exercise.edit("one-unit-of-all-blocks", {BLOCKS: "fully_shard(list(model.blocks), mesh=mesh)\n"}, """
    The blocks are in one unit: all of them are whole while the first one computes. Next: keep a unit for each block.
    """)

exercise.edit("first-block-with-the-embedding", {TIED: TIED.replace("model.head]", "model.head, model.blocks[0]]"),
    BLOCKS: BLOCKS.replace("model.blocks", "model.blocks[1:]")}, """
    The first block is in the embedding's unit: it is whole while the embedding computes, and stays whole up to the
    head. Next: keep a unit for each block.""")

exercise.edit("no-root", {ROOT: ""}, """
    The embedding and the head are the outermost unit, and that has to be a single module: its forward begins the step.
    Next: end with `fully_shard` of the model, even if no parameter is left for it.""")


@exercise.variant
def left_to_the_root(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return torch.optim.Adam(fully_shard(model, mesh=mesh).parameters(), lr=lr)


exercise.variant_edit("kept-whole", {"model.head], mesh=mesh": "model.head], mesh=mesh, reshard_after_forward=False"})
