"""What the exercises of lesson 06 stand on: a unit, and how it is gathered and freed, as in the lesson's notebook.

unit.params    the module's parameters: views of flat while the unit is gathered, and empty otherwise
unit.shapes    their shapes
unit.shard     [shard_numel] this rank's part, always there: what the optimizer updates
unit.flat      [padded_numel] the shards of all ranks, while the unit is gathered or being gathered; else None
unit.finish    finishes the all-gather, while the unit is gathered or being gathered; else None
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


def shard_params(params: list[nn.Parameter]) -> Tensor:
    """Return this rank's shard of the parameters, and leave each of them empty."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([param.detach().flatten() for param in params])
    padded = F.pad(flat, (0, -flat.numel() % world_size))
    for param in params:
        param.data = param.data.new_empty(0)
    return padded.chunk(world_size)[rank].clone()


class Unit:
    """A module whose parameters are gathered, used and freed together."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.params = list(module.parameters())
        self.shapes = [param.shape for param in self.params]
        self.shard = nn.Parameter(shard_params(self.params))
        self.flat: Any = None
        self.finish: Any = None


def start_gather(unit: Unit) -> Callable[[], None]:
    """Start to gather the shards of all ranks into `unit.flat`; return a function that finishes it."""
    unit.flat = torch.empty(dist.get_world_size() * unit.shard.numel(), dtype=unit.shard.dtype)
    handle = dist.all_gather_single(unit.flat, unit.shard.detach(), async_op=True)

    def finish() -> None:
        handle.wait()
        numels = [shape.numel() for shape in unit.shapes]
        pieces = unit.flat[: sum(numels)].split(numels)
        for param, shape, piece in zip(unit.params, unit.shapes, pieces, strict=True):
            param.data = piece.view(shape)

    return finish


def gather(unit: Unit) -> None:
    """Have the parameters of `unit`, whether or not their all-gather has been started."""
    if unit.flat is None:
        unit.finish = start_gather(unit)
    unit.finish()


def free(unit: Unit) -> None:
    """Let go of the parameters of `unit`; its shard stays."""
    unit.flat = unit.finish = None
    for param in unit.params:
        param.data = param.data.new_empty(0)
