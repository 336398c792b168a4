"""The model that the exercises of lesson 09 are tried on, its batches, and how it is trained."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ...meter import mark

Sizes = tuple[int, int, int]
"""Width, width within a block, and number of blocks."""


class Net(nn.Module):
    """A transformer in outline: `embed`, `blocks` that each add something, `head`.

    Every rank makes the same from the same seed.
    """

    def __init__(self, sizes: Sizes, seed: int) -> None:
        super().__init__()
        width, inner, count = sizes
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner), nn.Tanh(), nn.Linear(inner, width))
            for _ in range(count)
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        scores: Tensor = self.head(x)
        return scores


def draw_world_size(rng: random.Random, number: int) -> int:
    """2, 4 and 3 ranks, in the first three draws; then any of these. On one rank nothing is sharded."""
    return (2, 4, 3)[number] if number < 3 else rng.randint(2, 4)


def draw_sizes(rng: random.Random) -> Sizes:
    """Sizes that seldom divide."""
    return rng.randint(5, 8), rng.randint(9, 13), rng.randint(2, 3)


def mesh() -> DeviceMesh:
    """All ranks in a row."""
    return init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))


def in_one_call(optimizer: Optimizer) -> None:
    """Let a step update all parameters in one call: with FSDP2, the first call of each operator takes some 10 ms for
    each shape, on each rank."""
    for group in optimizer.param_groups:
        group["fused"] = True


def train(model: Callable[[Tensor], Tensor], optimizer: Optimizer, steps: int, seed: int) -> list[float]:
    """This rank's losses; its batches are others than those of other ranks. It marks "after forward"."""
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    losses = []
    for _ in range(steps):
        x = torch.randint(5, (4,), generator=generator)
        loss = model(x).square().mean()
        mark("after forward")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def shards(model: nn.Module) -> dict[str, Tensor]:
    """What this rank holds of each parameter."""
    return {name: local(param.detach()).clone() for name, param in model.named_parameters()}


def local(tensor: Tensor) -> Tensor:
    """A sharded tensor's part on this rank; any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
