"""Incident: half of the model never learns, because a forward came before the optimizer."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution


class Net(nn.Module):
    """Two linear maps around blocks that each add something; the same on every rank."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(2, width), nn.Linear(width, 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        y: Tensor = self.last(x)
        return y


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = 2 + number % 2, rng.randint(3, 5), rng.getrandbits(31)
    what = f"2 blocks of width {width}, 5 batches"
    return Case(world_size=world_size, args=lambda rank: (width, seed), what=what)


def trained(solution: Solution, width: int, seed: int) -> dict[str, Any]:
    """Train on batches that differ on each rank; return the losses and how far parameters moved."""
    xs = torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(seed + dist.get_rank()))
    batches = [(x, x.sum(1, keepdim=True)) for x in xs]
    model, before, whole = Net(width, seed), dict(Net(width, seed).named_parameters()), [""]

    def look(*_: Any) -> None:  # the last forward counts
        whole[:] = [name for name, param in model.blocks.named_parameters() if not isinstance(param, DTensor)]

    model.blocks[0].register_forward_hook(look)
    losses = solution(model, batches, 0.02)
    moved = {name: gathered(param).sub(before[name]).norm().item() for name, param in model.named_parameters()}
    return {"losses": losses, "how far each parameter moved": moved,
        "parameters of blocks that are whole while the first computes": whole}


def gathered(param: Tensor) -> Tensor:
    return (param.full_tensor() if isinstance(param, DTensor) else param).detach()


exercise = Exercise("incidents.warm_forward", title="Incident: half of the model stands still", draw=draw,
    answers={
        "where": "line 12: the optimizer is made",
        "why": "The optimizer has their whole tensors, and backward gives gradients to their shards",
    },
    trial=trained, inputs_matter=False, case_count=2, task="""
    The loss falls, more slowly than on one GPU, and ends far above. No rank reports an error. Find the line, and repair
    the program so that every parameter is trained. The list of losses keeps its first entry, the loss before training.
    """, hints="""
    Compare how far each parameter moved. Which parameters stand still, and what do they have in common?

    A unit of FSDP2 has two sets of parameters: the shards, and the whole ones while it is gathered. At each moment
    `model.parameters()` yields one of the two. Which does the optimizer get?

    The outermost unit stays gathered after a forward, because backward usually comes next. Print
    `type(param)` for each parameter where the optimizer is made.

    Make the optimizer where all parameters are shards: after `fully_shard`, before the first forward.
    `model.reshard()` brings the shards back, too.
    """, explanation="""
    After a forward, FSDP2 keeps the outermost unit whole: its parameters are then ordinary tensors, and the optimizer
    took those. Backward makes gradients for the shards, so the optimizer found none for these parameters and skipped
    them. The blocks were freed after their forward, so they were trained, and the loss fell. The report:
    [pytorch issue 149205](https://github.com/pytorch/pytorch/issues/149205). A check of one line finds it: after the
    first backward, every parameter in `optimizer.param_groups` has a gradient.
    """)


@exercise
def train(model: nn.Module, batches: list[tuple[Tensor, Tensor]], lr: float) -> list[float]:
    """Train `model` with FSDP2, and return the loss before training, then the loss of each batch.

    Each block is a unit by itself, and the rest of the model is one more. All parameters are trained.
    """
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    with torch.no_grad():
        losses = [F.mse_loss(model(batches[0][0]), batches[0][1]).item()]
    for x, y in batches:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


BLOCKS = "for block in model.blocks:\n    fully_shard(block)\n"
ROOT = "fully_shard(model)\n"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)\n"
FORWARD = "with torch.no_grad():\n    losses = [F.mse_loss(model(batches[0][0]), batches[0][1]).item()]\n"
LATE = {OPTIMIZER: "", FORWARD: FORWARD + OPTIMIZER}

exercise.start_edit(LATE)

exercise.edit("outermost-unit-stands-still", LATE | {FORWARD: FORWARD + OPTIMIZER + "model.reshard()\n"}, """
    The parameters of the outermost unit do not change: your optimizer's step does not reach them, as if it held other
    tensors than those that receive their gradients.
    Next: print how many parameters the optimizer holds, and the type of each, on the line after it is made.""")

exercise.edit("raises-the-learning-rate", LATE | {FORWARD: FORWARD + OPTIMIZER.replace("lr=lr", "lr=10 * lr")}, """
    You take ten times the learning rate. What your optimizer does not hold stays where it is.
    Next: find out which tensors the optimizer holds.""")

exercise.edit("nothing-moves", {BLOCKS: OPTIMIZER + BLOCKS, OPTIMIZER: ""}, """
    What is sharded does not move: your optimizer makes no step, or finds no gradients. If it is made before
    `fully_shard`, it holds the parameters that sharding replaces.
    Next: look at where the optimizer is made, at what happens to the gradients before its step, and at the step.""")

exercise.edit("outermost-unit-not-sharded", {ROOT: ""}, """
    Everything moves, but the parameters outside the blocks belong to no unit. Nobody averages their gradients, so each
    rank trains them on its own batches, and the ranks drift apart.
    Next: keep `fully_shard(model)`, and look at where the optimizer is made.""")

exercise.edit("one-unit", {BLOCKS: ""}, """
    The blocks are no units any more: the whole model is gathered at once.
    Next: keep the units as they were; the fault is in what the optimizer holds.""")

exercise.edit("no-loss-before-training", {FORWARD: "losses = []\n"}, """
    You removed the forward before training. That avoids the fault, and the log loses its first entry. A profiler or an
    evaluation at this place would bring the fault back.
    Next: keep this forward, and make the optimizer where a forward cannot change what it gets.""")

exercise.edit("optimizer-in-each-step", LATE | {"optimizer.step()\n": OPTIMIZER + "optimizer.step()\n"}, """
    All parameters move, but each step goes as if it were the first: the momentum is lost, as with a new optimizer for
    each step, or with one that has none. Next: make the optimizer once, with its momentum, where all parameters are
    shards.""")

exercise.edit("gradient-of-the-log", LATE | {FORWARD: "loss = F.mse_loss(model(batches[0][0]), batches[0][1])\n"
    "loss.backward()\nlosses = [loss.item()]\n" + OPTIMIZER}, """
    The backward of your first loss frees the outermost unit, so the optimizer gets shards. But its gradients stay and
    are added to those of the first batch, so the first step goes twice as far.
    Next: leave this loss without a backward, and make the optimizer before it.""")

exercise.variant_edit("shards-brought-back", LATE | {FORWARD: f"{FORWARD}model.reshard()\n{OPTIMIZER}"})

exercise.variant_edit("freed-after-forward", LATE | {ROOT: "fully_shard(model, reshard_after_forward=True)\n"})

exercise.variant_edit("logs-before-sharding", {BLOCKS: FORWARD + BLOCKS, FORWARD: ""})
