"""What the cells of lesson 04 start from, under the names that the learner's functions have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


def partition(numels: list[int], world_size: int) -> list[list[int]]:
    """Return, for each rank, the numbers of the parameters that it owns.

    Parameter `number` has `numels[number]` elements. Deal the parameters out,
    the largest first, each to the rank that has the fewest elements so far.
    """
    raise NotImplementedError


def make_sharded_step(
    params: list[nn.Parameter],
    parts: list[list[int]],
    make_optimizer: Callable[..., Optimizer],
) -> Callable[[], None]:
    """Return a function that makes one step, with gradients that are averaged already.

    Each rank updates the parameters that it owns, and brings them to the others.
    `parts[rank]` has the numbers of those that `rank` owns, or none; each has one owner.
    `make_optimizer(params)` makes an optimizer for the parameters that it is given.
    """
    raise NotImplementedError


def flatten(params: list[nn.Parameter], world_size: int) -> torch.Tensor:
    """Return a flat tensor with the values of all `params` in order, of which they become views.

    Zeros at the end fill it up to the next multiple of `world_size`.
    """
    raise NotImplementedError


def make_zero1_step(
    params: list[nn.Parameter],
    flat_param: torch.Tensor,
    make_optimizer: Callable[..., Optimizer],
) -> Callable[[], None]:
    """Return a function that makes one step of ZeRO-1 with the gradients of all ranks.

    `params` are views of `flat_param`, as `flatten` leaves them. Each rank owns one of
    `world_size` equal shards of it. Gradients differ from rank to rank, and where one
    is None it counts as zeros. `make_optimizer(params)` makes an optimizer for them.
    """
    raise NotImplementedError


def consolidate(optimizer: Optimizer, parts: list[list[int]]) -> dict[str, Any] | None:
    """Return, on rank 0, the state dict of one optimizer for all parameters; elsewhere None.

    On each rank, `optimizer` has one group: what `parts[rank]` numbers, in that order.
    """
    raise NotImplementedError
