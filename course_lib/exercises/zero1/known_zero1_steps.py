"""Known solutions of the exercise `zero1_step`: the mistakes, then right ones written differently.

A mistake is the right step with one part done otherwise (`step_with`), or, where that is not enough, a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim import Optimizer

from ..declare import Solution

Params = list[nn.Parameter]
MakeOptimizer = Callable[..., Optimizer]
Step = Callable[[], None]


def flat_grads(params: Params, flat_param: Tensor) -> Tensor:
    """This rank's gradients, laid out as the parameters are."""
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
    values = torch.cat([grad.flatten() for grad in grads])
    return pad(values, (0, len(flat_param) - len(values)))


def shard_of(flat: Tensor, rank: int | None = None) -> Tensor:
    return flat.view(dist.get_world_size(), -1)[dist.get_rank() if rank is None else rank]


def averaged(flat_grad: Tensor, flat_param: Tensor) -> Tensor:
    """This rank's shard of the averaged `flat_grad`."""
    grad_shard = torch.empty_like(shard_of(flat_param))
    dist.reduce_scatter_single(grad_shard, flat_grad)
    return grad_shard / dist.get_world_size()


def averaged_shard(params: Params, flat_param: Tensor) -> Tensor:
    return averaged(flat_grads(params, flat_param), flat_param)


def gather(flat_param: Tensor, param_shard: Tensor) -> None:
    dist.all_gather_single(flat_param, param_shard)


def step_with(
    shard: Callable[[Tensor], Tensor] = shard_of,
    grad: Callable[[Params, Tensor], Tensor] = averaged_shard,
    bring: Callable[[Tensor, Tensor], object] = gather,
) -> Solution:
    """The step, with a part of it done otherwise.

    Args:
        shard: from `flat_param`, what the optimizer updates.
        grad: from `params` and `flat_param`, the gradient of that.
        bring: brings what was updated, its second argument, to all ranks.
    """

    def make_step(params: Params, flat_param: Tensor, make_optimizer: MakeOptimizer) -> Step:
        param_shard = nn.Parameter(shard(flat_param))
        optimizer = make_optimizer([param_shard])

        def step() -> None:
            param_shard.grad = grad(params, flat_param)
            optimizer.step()
            bring(flat_param, param_shard.detach())

        return step

    return make_step


def shard_of_the_next(flat_param: Tensor) -> Tensor:
    return shard_of(flat_param, (dist.get_rank() + 1) % dist.get_world_size())


def cut_from_an_all_reduce(params: Params, flat_param: Tensor) -> Tensor:
    flat_grad = flat_grads(params, flat_param)
    dist.all_reduce(flat_grad)
    return shard_of(flat_grad) / dist.get_world_size()


def without_gaps(params: Params, flat_param: Tensor) -> Tensor:
    values = torch.cat([param.grad.flatten() for param in params if param.grad is not None])
    return averaged(pad(values, (0, len(flat_param) - len(values))), flat_param)


def without_padding(params: Params, flat_param: Tensor) -> Tensor:
    return averaged(flat_grads(params, flat_param)[: sum(param.numel() for param in params)], flat_param)


def broadcast_shards(flat_param: Tensor, param_shard: Tensor) -> None:
    for owner in range(dist.get_world_size()):
        dist.broadcast(shard_of(flat_param, owner), src=owner)


def average_parameters(flat_param: Tensor, param_shard: Tensor) -> None:
    dist.all_reduce(flat_param)
    flat_param.div_(dist.get_world_size())


def gathers_first(params: Params, flat_param: Tensor, make_optimizer: MakeOptimizer) -> Step:
    param_shard = nn.Parameter(shard_of(flat_param))
    optimizer = make_optimizer([param_shard])

    def step() -> None:
        param_shard.grad = averaged_shard(params, flat_param)
        gather(flat_param, param_shard.detach())
        optimizer.step()

    return step


def unsharded(params: Params, flat_param: Tensor, make_optimizer: MakeOptimizer) -> Step:
    optimizer = make_optimizer(params)

    def step() -> None:
        for param in params:
            param.grad = torch.zeros_like(param) if param.grad is None else param.grad
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        optimizer.step()

    return step


def unsharded_and_gathered(params: Params, flat_param: Tensor, make_optimizer: MakeOptimizer) -> Step:
    update = unsharded(params, flat_param, make_optimizer)

    def step() -> None:
        update()
        gather(flat_param, shard_of(flat_param).clone())

    return step


def whole_state(params: Params, flat_param: Tensor, make_optimizer: MakeOptimizer) -> Step:
    whole = nn.Parameter(flat_param)
    optimizer = make_optimizer([whole])

    def step() -> None:
        whole.grad = torch.zeros_like(flat_param)
        shard_of(whole.grad).copy_(averaged_shard(params, flat_param))
        optimizer.step()
        gather(flat_param, shard_of(flat_param).clone())

    return step


def made_anew(params: Params, flat_param: Tensor, make_optimizer: MakeOptimizer) -> Step:
    return lambda: step_with()(params, flat_param, make_optimizer)()


def keeps_adding(params: Params, flat_param: Tensor, make_optimizer: MakeOptimizer) -> Step:
    so_far = torch.zeros_like(flat_param)
    make_step = step_with(grad=lambda params, flat: averaged(so_far.add_(flat_grads(params, flat)), flat))
    step: Step = make_step(params, flat_param, make_optimizer)
    return step


def in_lists(params: Params, flat_param: Tensor, make_optimizer: MakeOptimizer) -> Step:
    shards = list(flat_param.chunk(dist.get_world_size()))
    optimizer = make_optimizer([shards[dist.get_rank()]])

    def step() -> None:
        flat_grad = flat_grads(params, flat_param) / dist.get_world_size()
        grad_shard = torch.empty_like(shards[0])
        dist.reduce_scatter(grad_shard, list(flat_grad.chunk(dist.get_world_size())))
        shards[dist.get_rank()].grad = grad_shard
        optimizer.step()
        dist.all_gather(shards, shards[dist.get_rank()].clone())

    return step


def into_a_new_tensor(params: Params, flat_param: Tensor, make_optimizer: MakeOptimizer) -> Step:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    size = len(flat_param) // world_size
    param_shard = nn.Parameter(flat_param[rank * size : (rank + 1) * size])
    optimizer = make_optimizer([{"params": [param_shard]}])

    def step() -> None:
        flat_grad, end = torch.zeros_like(flat_param), 0
        for param in params:
            begin, end = end, end + param.numel()
            if param.grad is not None:
                flat_grad[begin:end].copy_(param.grad.view(-1))
        param_shard.grad = torch.empty(size)
        work = dist.reduce_scatter_single(param_shard.grad, flat_grad, async_op=True)
        work.wait()
        param_shard.grad.div_(world_size)
        optimizer.step()
        whole = torch.empty_like(flat_param)
        dist.all_gather_single(whole, param_shard.data)
        flat_param.copy_(whole)

    return step
