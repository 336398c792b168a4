"""The gradients of experts, next to those of what all ranks have."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...exercises import Case, Exercise, Solution, draw_world_size
from ..data_parallel.data import give_gradients, parameters


def draw(rng: random.Random, number: int) -> Case:
    """Draw an expert without a token, and so without a gradient, on one rank of draw 1; all of a rank's in draw 2."""
    world_size, seed, idle = draw_world_size(rng, number), rng.getrandbits(31), rng.randrange(2)
    shapes, shared = [(rng.randint(1, 3), rng.randint(1, 3)) for _ in range(5)], 2 + number % 2

    def args(rank: int) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        params = parameters(shapes, torch.float64, seed)
        unused = {1: [shared], 2: range(shared, 5)}.get(number, []) if rank == idle else []
        give_gradients(params, seed, rank, unused)
        return params[:shared], params[shared:]

    what = f"{shared} shared parameters, {5 - shared} of the rank's own expert"
    return Case(world_size=world_size, args=args, what=what)


def gradients(solution: Solution, shared: list[nn.Parameter], experts: list[nn.Parameter]) -> Any:
    solution(shared, experts)
    return {"shared": [param.grad for param in shared], "experts": [zeros_for_none(param) for param in experts]}


def zeros_for_none(param: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad


exercise = Exercise("context.expert_gradients", title="What an expert has already summed", draw=draw, trial=gradients,
    case_count=4, inputs_matter=False,
    task="""
    Every rank's loss is the mean over its own tokens, and you want the gradients of the mean of these losses. The
    parameters `shared` are the same on every rank. Each rank has different `experts`, to which tokens of all ranks
    came. Make all gradients right. An expert that got no token may have no gradient.
    """, hints="""
    Follow one token of rank 0 that went to an expert on rank 1. On which rank does its gradient arrive?

    Backward brings the gradients of all ranks' tokens to the expert. So an expert's gradient is already a sum over all
    ranks' losses. What you want is their mean.

    `dist.all_reduce(param.grad)` sums a shared gradient. Nothing has to be sent for an expert.

    ```python
    for param in shared:
        ...
    for param in experts:
        if param.grad is not None:
            ...
    ```
    """, explanation="""
    Both kinds are divided by the number of ranks, because the loss is the mean of the ranks' losses; only the shared
    ones need a sum first. If the experts are left to data parallel, it averages different experts; if they are left
    alone, their gradients are N times too large, which looks like a learning rate that is N times too high for them.
    DeepSpeed's ZeRO had this fault until someone compared the gradients of two numbers of ranks, in 2024
    ([issue 6545](https://github.com/deepspeedai/DeepSpeed/issues/6545)).
    """)


@exercise
def average_gradients(shared: list[nn.Parameter], experts: list[nn.Parameter]) -> None:
    """Turn each parameter's gradient into that of the mean of all ranks' losses.

    A rank's loss is the mean over its own tokens.
    shared: parameters that all ranks have. Their gradients are those of this rank's loss.
    experts: those that only this rank has. Tokens of all ranks came to them, so their gradients are already
    sums over all ranks' losses. Without a token, a gradient may be None.
    """
    for param in shared:
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()
    for param in experts:
        if param.grad is not None:
            param.grad /= dist.get_world_size()


exercise.edit("experts-left-alone", {"for param in experts:\nif param.grad is not None:\n"
    "param.grad /= dist.get_world_size()": ""}, """
    Your experts' gradients are sums over the losses of all ranks, N times too large. Next: divide them by the number of
    ranks, without sending anything.
    """)

exercise.edit("experts-averaged", {"for param in shared:": "for param in shared + [expert for expert in experts "
    "if expert.grad is not None]:", "for param in experts:\nif param.grad is not None:\n"
    "param.grad /= dist.get_world_size()": ""}, """
    You average the gradients of different experts with each other. An expert is on one rank only. Next: send nothing
    for experts, and divide their gradients by the number of ranks.
    """)

exercise.edit("experts-divided-twice", {"if param.grad is not None:\nparam.grad /= dist.get_world_size()":
    "if param.grad is not None:\n    param.grad /= dist.get_world_size() ** 2"}, """
    You divide the experts' gradients by the number of ranks twice. Next: divide once.
    """)

IDLE = """
    An expert that got no token has no gradient to divide. Next: leave out the experts whose gradient is None.
    """
GUARDED = "if param.grad is not None:\nparam.grad /= dist.get_world_size()"

exercise.edit("idle-expert", {GUARDED: "param.grad /= dist.get_world_size()"}, IDLE)
exercise.edit("idle-expert-div", {GUARDED: "param.grad.div_(dist.get_world_size())"}, IDLE)
exercise.edit("idle-expert-quotient", {GUARDED: "param.grad = param.grad / dist.get_world_size()"}, IDLE)

exercise.edit("shared-summed", {"dist.all_reduce(param.grad)\nparam.grad /= dist.get_world_size()":
    "dist.all_reduce(param.grad)"}, """
    The shared gradients are sums over the ranks; you want means. Next: divide them by the number of ranks, too.
    """)

exercise.edit("shared-not-reduced", {"dist.all_reduce(param.grad)\n": ""}, """
    You divide the shared gradients, but never sum them over the ranks, so each rank would update its copy differently.
    Next: all-reduce them first.
    """)


@exercise.variant
def in_one_piece(shared: list[nn.Parameter], experts: list[nn.Parameter]) -> None:
    world_size = dist.get_world_size()
    flat = torch.cat([param.grad.flatten() for param in shared if param.grad is not None])
    dist.all_reduce(flat)
    for param, mean in zip(shared, (flat / world_size).split([param.numel() for param in shared]), strict=True):
        param.grad = mean.view_as(param)
    for param in experts:
        param.grad = None if param.grad is None else param.grad / world_size


exercise.variant_edit("averages", {"dist.all_reduce(param.grad)\nparam.grad /= dist.get_world_size()":
    "dist.all_reduce(param.grad, dist.ReduceOp.AVG)"})
