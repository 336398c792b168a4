"""Collectives that backward passes through: each one's backward is another of them.

    forward           backward          where (Shoeybi et al. 2019, figure 3; Korthikanti et al. 2022, figure 5)
    copy              all_reduce        into a tensor-parallel layer: every rank uses the whole input
    all_reduce        copy              out of it: each rank has computed a summand of the whole output
    all_gather        reduce_scatter    into it, if each rank has a part of the sequence
    reduce_scatter    all_gather        out of it, likewise
    all_to_all        all_to_all        tokens to the ranks that have their experts, and back

The gradient of what all ranks use is the sum of what they send back; the gradient of a sum goes to each summand.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

Group = dist.ProcessGroup | None


def copy(x: Tensor, group: Group = None) -> Tensor:
    """Return `x`, which is the same on every rank. Backward sums its gradient over the ranks."""
    return _apply(_Copy, x, group)


def all_reduce(x: Tensor, group: Group = None) -> Tensor:
    """Return the sum of all ranks' `x`. Backward hands the sum's gradient to each rank."""
    return _apply(_AllReduce, x, group)


def all_gather(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """Return all ranks' `x`, joined along `dim`. Backward sums the gradients and gives each rank its part."""
    return _apply(_AllGather, x, dim, group)


def reduce_scatter(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """Return this rank's part along `dim` of the sum of all ranks' `x`. Backward joins the parts' gradients.

    Raises:
        ValueError: the ranks' parts would not have the same size.
    """
    return _apply(_ReduceScatter, x, dim, group)


def all_to_all(x: Tensor, sent: list[int], received: list[int], group: Group = None) -> Tensor:
    """Return the rows that all ranks have sent to this rank, in the order of the ranks. Backward sends gradients back.

    Args:
        x: [sum of sent, ...], the rows for rank 0, then those for rank 1, and so on.
        sent, received: how many rows go to each rank, and how many come from it.
    """
    return _apply(_AllToAll, x, sent, received, group)


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


class _Copy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _sum(grad, ctx.group), None


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return join(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _sum_of_my_part(grad, ctx.dim, ctx.group), None, None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _sum_of_my_part(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return join(grad, ctx.dim, ctx.group), None, None


class _AllToAll(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _exchange(grad, ctx.received, ctx.sent, ctx.group), None, None, None


def _apply(function: type[Function], *args: Any) -> Tensor:
    result: Tensor = function.apply(*args)
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
