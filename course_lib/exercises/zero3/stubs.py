"""What the cells of lesson 06 start from, under the names that the learner's functions have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from .unit import Unit


def shard_params(params: list[nn.Parameter]) -> Tensor:
    """Return this rank's shard of the parameters, and leave each of them empty.

    Flattened and one after the other, with zeros behind the last so that world size shards are
    equal. The shard is [shard_numel], on memory of its own. All params have the same dtype.
    """
    raise NotImplementedError


def start_gather(unit: Unit) -> Callable[[], None]:
    """Start to gather the shards of all ranks into `unit.flat`; return a function that finishes it.

    Finished, each of `unit.params` is a view of its part of `unit.flat`, in its shape. Nothing but
    `unit.flat`, the parameters and the function that finishes refers to that memory.
    """
    raise NotImplementedError


def sharded_forward(unit: Unit, x: Tensor) -> Tensor:
    """Return `unit.module(x)`; the unit is gathered before it and free after it.

    Until backward comes to the output, nothing keeps the whole parameters. Then they are gathered
    again; they stay, since backward needs them.
    """
    raise NotImplementedError


def reduce_gradients(unit: Unit) -> None:
    """Add this rank's shard of the averaged gradients to `unit.shard.grad`; free all that is whole.

    Whole are the gradients and the parameters. A parameter without a gradient brings zeros, and so
    does the padding.
    """
    raise NotImplementedError


def gather_ahead(units: list[Unit], number: int, depth: int) -> None:
    """Have the parameters of `units[number]`; those of the next `depth` units are on their way.

    Nothing is started twice. A unit that was started and not freed has a `flat`.
    """
    raise NotImplementedError
