"""FSDP2: units, and the optimizer that goes with them."""


from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer

from ...exercises import Exercise, Solution, same_calls
from .data import Net, Sizes, a_step, draw_training, mesh, on_plain_tensors, shards


def trained(solution: Solution, sizes: Sizes, lr: float, seed: int, meshes: int) -> dict[str, Any]:
    """Make two steps, and return their losses, what the rank then holds of each parameter, and the units.

    The first step does not show the betas.
    """
    model = Net(sizes, seed)
    optimizer = solution(model, mesh(meshes), lr)
    parts = units(model)
    update = on_plain_tensors(optimizer)
    losses = [a_step(model, update, seed + 10 * number) for number in range(2)]
    return {"losses": losses, "what the rank holds": shards(model), "the parameters of each unit": parts}


def units(model: nn.Module) -> list[list[str]]:
    """Return the names of each unit's parameters. A list of modules is one unit; one without parameters is none."""
    unit_of = {}  # the innermost, because a module comes after the modules that contain it
    for prefix, part in model.named_modules():
        if isinstance(part, FSDPModule):
            unit_of |= {name: part._get_fsdp_state() for name, _ in part.named_parameters(prefix)}
    return [[name for name in unit_of if unit_of[name] is unit] for unit in dict.fromkeys(unit_of.values())]


exercise = Exercise("production.make_zero3", title="Units for FSDP2", draw=draw_training, trial=trained,
    rules=[same_calls()], inputs_matter=False, case_count=2, task="""
    Shard the model over `mesh` with `fully_shard`, and return an `Adam` with learning rate `lr` for it. The model has
    `model.blocks`, an embedding and a head. Each block is a unit by itself: an all-gather for forward, one more for
    backward, because the block is freed in between, and one reduce-scatter of its gradients. The embedding and the head
    belong to the outermost unit, which is the model. The end of forward and the beginning of backward use it, so it
    stays whole in between, which is FSDP2's default for the outermost unit.""", hints="""
    Which parameters are needed at the same time? Which unit do the parameters outside the blocks belong to?

    `fully_shard` makes one unit of a module's parameters, except those that already belong to a unit. So the order of
    the calls matters. It also replaces the parameters by sharded ones, in place.

    `fully_shard(module, mesh=mesh)`, for each block and for the model; `torch.optim.Adam(model.parameters(), lr=lr)`.

    ```python
    for block in ...:
        fully_shard(..., mesh=mesh)
    fully_shard(..., mesh=mesh)
    return torch.optim.Adam(...)
    ```
    """, explanation="""
    Shard from the inside to the outside: each call takes the parameters that no earlier call has taken. The outermost
    unit is special in two ways. FSDP2 does not free it after forward, because backward begins with it. And its forward
    is the model's forward, so FSDP2 knows when a step begins. The optimizer is an ordinary one, made after the
    sharding.""")


@exercise
def make_zero3(model: nn.Module, mesh: DeviceMesh, lr: float) -> Optimizer:
    """Shard `model` over `mesh` with FSDP2, and return an Adam that trains it.

    Each of `model.blocks` is a unit, gathered for forward and again for backward. The outermost
    unit, `model`, takes all else, and stays whole from forward to backward.
    """
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.Adam(model.parameters(), lr=lr)


BLOCKS = "for block in model.blocks:\n    fully_shard(block, mesh=mesh)\n"
ROOT = "fully_shard(model, mesh=mesh)\n"
ADAM = "return torch.optim.Adam(model.parameters(), lr=lr)"

exercise.edit("nothing-sharded", {BLOCKS: "", ROOT: ""}, """
    You never call `fully_shard`, so each rank keeps the whole model, and no rank averages the gradients.
    Next: call `fully_shard` for each block, then for the model.""")

exercise.edit("one-unit", {BLOCKS: ""}, """
    The whole model is one unit. It is gathered at once before forward, and stays whole until backward is done: during a
    step each rank holds all parameters. Next: shard the blocks one by one first, then the model.""")

exercise.edit("blocks-only", {ROOT: ""}, """
    The embedding and the head belong to no unit. Each rank keeps them whole, and updates them with its own gradients,
    so the ranks drift apart. Next: after the blocks, call `fully_shard` on the model, which takes all other parameters.
    """)

exercise.edit("a-unit-for-each-child", {ROOT: f"for unit in (model.embed, model.head):\n    fully_shard(unit, "
    f"mesh=mesh)\n{ROOT}"}, """
    The embedding and the head are in different units. The task leaves both to the outermost unit, the model.
    Next: leave them to the last call, `fully_shard` of the model.""")

exercise.edit("blocks-as-one", {BLOCKS: "fully_shard(list(model.blocks), mesh=mesh)\n"}, """
    A list of modules is one unit, so all blocks are gathered together. Next: call `fully_shard` for each block.""")

exercise.edit("list-of-blocks", {BLOCKS: "fully_shard(model.blocks, mesh=mesh)\n"}, """
    `model.blocks` is a ModuleList, which has no forward of its own. FSDP2 gathers a unit before its forward.
    Next: call `fully_shard` for each block in the list.""")

exercise.edit("model-first", {BLOCKS: ROOT, ROOT: BLOCKS}, """
    You shard the model before the blocks. The model's unit takes all parameters, and the blocks get none.
    Next: go from the inside to the outside: the blocks, then the model.""")

exercise.edit("over-all-ranks", {"fully_shard(block, mesh=mesh)": "fully_shard(block)",
    "fully_shard(model, mesh=mesh)": "fully_shard(model)"}, """
    You shard over all ranks, which is what `fully_shard` does without a mesh. The mesh can have fewer.
    Next: pass the mesh that the function is given to each call.""")

exercise.edit("not-freed", {"block, mesh=mesh": "block, mesh=mesh, reshard_after_forward=False"}, """
    With `reshard_after_forward=False` the blocks stay whole from forward to backward. This saves all-gathers, and takes
    the memory that sharding was meant to save. Next: remove this option for the blocks.""")

exercise.edit("root-freed", {"model, mesh=mesh": "model, mesh=mesh, reshard_after_forward=True"}, """
    You free the outermost unit after forward. Backward needs it at once, so it is gathered again without any gain.
    Next: remove this option: by default, FSDP2 frees all units except the outermost one.""")

exercise.edit("optimizer-first", {BLOCKS: f"optimizer = {ADAM.removeprefix('return ')}\n{BLOCKS}",
    ADAM: "return optimizer"}, """
    The model never learns: your optimizer holds tensors that get no gradients. If it is made before the model is
    sharded, these are the parameters that `fully_shard` replaces.
    Next: make the optimizer last, for `model.parameters()`.""")

exercise.edit("default-lr", {", lr=lr": ""}, """
    Your Adam has its default learning rate, 0.001. Next: make it with the learning rate that the function is given.""")


@exercise.variant
def with_options(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
    for number in reversed(range(len(model.blocks))):
        model.blocks[number] = fully_shard(model.blocks[number], mesh=mesh, reshard_after_forward=True)
    sharded = fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return torch.optim.Adam([{"params": sharded.parameters()}], lr=lr)


@exercise.variant
def by_name(model: Any, mesh: DeviceMesh, lr: float) -> Optimizer:
    for name, child in model.named_children():
        if name == "blocks":
            for block in child:
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.Adam((param for param in model.parameters()), lr)


exercise.variant_edit("a-unit-of-two", {ROOT: "fully_shard([model.embed, model.head], mesh=mesh, "
    f"reshard_after_forward=False)\n{ROOT}"})
