"""The model on which the exercises of lesson 10 are tried, and how its steps are made."""

import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ...exercises import Case

Sizes = tuple[int, int]
"""Width, and number of blocks."""


class Net(nn.Module):
    """A transformer in outline, equal on every rank: `embed`, `blocks` that each add something, `head`."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        super().__init__()
        width, count = sizes
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(count))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        scores: Tensor = self.head(x)
        return scores


def draw_world(rng: random.Random, number: int) -> tuple[int, Sizes]:
    """Return the number of ranks, 2 and 3 in the first draws, and sizes that 2, 3 and 4 do not divide."""
    return (2, 3)[number] if number < 2 else rng.randint(2, 4), (rng.choice((5, 7)), 2 + number % 2)


def draw_training(rng: random.Random, number: int) -> Case:
    """Return a case of a model's sizes, a learning rate, a seed and a number of meshes. The second case has two."""
    (world_size, sizes), lr, seed = draw_world(rng, number), rng.uniform(0.02, 0.05), rng.getrandbits(32)
    count = 1
    if number == 1:
        world_size, count = 4, 2
    what = f"{sizes[1]} blocks of width {sizes[0]}, lr {lr:.3f}" + ", a mesh of 2 of the ranks" * (count > 1)
    return Case(world_size=world_size, args=lambda rank: (sizes, lr, seed, count), what=what)


def mesh(count: int) -> DeviceMesh:
    """Return the mesh of this rank, of `count` meshes that each have the same number of neighbouring ranks."""
    shape = count, dist.get_world_size() // count
    return init_device_mesh(torch.get_default_device().type, shape, mesh_dim_names=("copy", "shard"))["shard"]


def a_step(model: Callable[[Tensor], Tensor], update: Callable[[], object], seed: int) -> float:
    """Make a step on a batch of this rank's own, and return the loss before it."""
    batch = torch.randint(5, (4,), generator=torch.Generator().manual_seed(seed + dist.get_rank()))
    loss = model(batch).square().mean()
    loss.backward()
    update()
    return loss.item()


def on_plain_tensors(optimizer: Optimizer) -> Callable[[], None]:
    """Let the optimizer update this rank's shards as plain tensors, and return a function that makes a step.

    With DTensors, the first step would take 0.1 s on each rank: their first call of an operator is slow.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    shards = {param: nn.Parameter(local(param)) for param in params}  # in the same memory
    for group in optimizer.param_groups:
        group["params"] = [shards[param] for param in group["params"]]

    def update() -> None:
        for param, shard in shards.items():
            shard.grad, param.grad = None if param.grad is None else local(param.grad), None
        optimizer.step()

    return update


def shards(model: nn.Module) -> dict[str, Tensor]:
    """Return what this rank holds of each parameter."""
    return {name: local(param).clone() for name, param in model.named_parameters()}


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor on this rank; a different tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
