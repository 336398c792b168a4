"""A unit, as in the lesson's notebook.

unit.params    the module's parameters: views of flat while the unit is gathered, otherwise empty
unit.shapes    their shapes
unit.shard     [shard_numel] this rank's shard, always present: the optimizer updates it
unit.flat      [padded_numel] the shards of all ranks, from the start of the gather until the unit is freed; else None
unit.finish    finishes the gather; there as long as flat, else None
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .data import total_numel
from .shard_params import shard_params


class Unit:
    """A module whose parameters are gathered, used and freed together."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.params = list(module.parameters())
        self.shapes = [param.shape for param in self.params]
        self.shard = nn.Parameter(shard_params(self.params))
        self.flat: Any = None
        self.finish: Any = None


def free(unit: Unit) -> None:
    """Drop the parameters of `unit`; its shard stays."""
    unit.flat = unit.finish = None
    for param in unit.params:
        param.data = param.data.new_empty(0)


def poisoned_unit(module: nn.Module) -> Unit:
    """Return a unit with NaN as padding, so that a solution that uses the padding is found out."""
    unit = Unit(module)
    unpadded = total_numel(unit.shapes) - dist.get_rank() * unit.shard.numel()
    unit.shard.data[max(0, unpadded) :] = torch.nan
    return unit
