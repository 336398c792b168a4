"""Collectives that backward passes through: each one's backward is another of them.

    forward           backward          where (Shoeybi et al. 2019, figure 3; Korthikanti et al. 2022, figure 5)
    copy              all_reduce        into a tensor-parallel layer: every rank uses the whole input
    all_reduce        copy              out of it: each rank has computed a summand of the whole output
    all_gather        reduce_scatter    into it, if each rank has a part of the sequence
    reduce_scatter    all_gather        out of it, likewise
    all_to_all        all_to_all        tokens to the ranks that have their experts, and back

The gradient of what all ranks use is the sum of what they send back; the gradient of a sum goes to each summand.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

Group = dist.ProcessGroup | None
Way = Callable[[Tensor], Tensor]


def copy(x: Tensor, group: Group = None) -> Tensor:
    """Return `x`, which is the same on every rank. Backward sums its gradient over the ranks."""
    return _with_backward(x, lambda x: x.view_as(x), lambda grad: all_reduce(grad, group))


def all_reduce(x: Tensor, group: Group = None) -> Tensor:
    """Return the sum of all ranks' `x`. Backward hands the sum's gradient to each rank."""
    return _with_backward(x, lambda x: _sum(x, group), lambda grad: copy(grad, group))


def all_gather(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """Return all ranks' `x`, joined along `dim`. Backward sums the gradients and gives each rank its part."""
    return _with_backward(x, lambda x: join(x, dim, group), lambda grad: reduce_scatter(grad, dim, group))


def reduce_scatter(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """Return this rank's part along `dim` of the sum of all ranks' `x`. Backward joins the parts' gradients.

    Raises:
        ValueError: the ranks' parts would not have the same size.
    """
    return _with_backward(x, lambda x: _sum_of_my_part(x, dim, group), lambda grad: all_gather(grad, dim, group))


def all_to_all(x: Tensor, sent: list[int], received: list[int], group: Group = None) -> Tensor:
    """Return the rows that all ranks have sent to this rank, in the order of the ranks. Backward sends gradients back.

    Args:
        x: [sum of sent, ...], the rows for rank 0, then those for rank 1, and so on.
        sent, received: how many rows go to each rank, and how many come from it.
    """
    return _with_backward(
        x, lambda x: _exchange(x, sent, received, group), lambda grad: all_to_all(grad, received, sent, group)
    )


def part(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """Return this rank's part of `x` along `dim`: one of N equal ones, in the order of the ranks.

    Raises:
        ValueError: the parts would not have the same size.
    """
    world_size = dist.get_world_size(group)
    if x.shape[dim] % world_size:
        raise ValueError(
            f"rank {dist.get_rank()}: dimension {dim} of {tuple(x.shape)} cannot be cut into {world_size} equal parts. "
            "Choose a size that the number of ranks divides."
        )
    return x.chunk(world_size, dim)[dist.get_rank(group)]


def join(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """Return all ranks' `x`, joined along `dim`, without a backward."""
    parts = x.new_empty(dist.get_world_size(group), *x.shape)
    dist.all_gather_single(parts.flatten(0, 1), x.contiguous(), group=group)
    return torch.cat(parts.unbind(), dim)


class _WithBackward(Function):
    """A function of a tensor, with another one as its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Way, backward: Way) -> Tensor:
        ctx.way_back = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.way_back(grad), None, None


def _with_backward(x: Tensor, forward: Way, backward: Way) -> Tensor:
    result: Tensor = _WithBackward.apply(x, forward, backward)
    return result


def _sum(x: Tensor, group: Group) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _sum_of_my_part(x: Tensor, dim: int, group: Group) -> Tensor:
    mine = part(x, dim, group)
    parts = torch.stack(x.chunk(dist.get_world_size(group), dim))
    total = torch.empty_like(mine, memory_format=torch.contiguous_format)
    dist.reduce_scatter_single(total, parts.flatten(0, 1), group=group)
    return total


def _exchange(x: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    arrived = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(arrived, x.contiguous(), received, sent, group=group)
    return arrived
