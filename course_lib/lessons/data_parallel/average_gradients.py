"""The average of the ranks' gradients, one all-reduce for each parameter."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...exercises import Case, Exercise, Solution, draw_world_size
from .data import DTYPES, add_digits, draw_shapes, draw_unused, give_gradients, parameters


def draw(rng: random.Random, number: int) -> Case:
    world_size, count, seed = draw_world_size(rng, number), rng.randint(3, 5), rng.getrandbits(32)
    shapes, dtype = draw_shapes(rng, count), DTYPES[number % 2]
    frozen = count // 2 if number > 2 else None
    # Some parameters are unused in every case except the first and those of one rank.
    unused = draw_unused(rng, count, world_size) if number > 0 else [[] for _ in range(world_size)]

    def args(rank: int) -> tuple[nn.Module]:
        params = parameters(shapes, dtype, seed + rank)  # averaging these would show
        give_gradients(params, seed, rank, unused[rank])
        add_digits(params, rank, world_size)
        if frozen is not None:
            params[frozen].grad = None
            params[frozen].requires_grad_(False)
        return (nn.ParameterList(params),)

    what = f"{count} parameters"
    what += ", some without a gradient on one rank" * any(unused) + ", one frozen" * (frozen is not None)
    return Case(world_size=world_size, args=args, what=what)


def gradients_afterwards(solution: Solution, model: nn.Module) -> dict[str, Any]:
    solution(model)
    return {
        "gradients": {name: param.grad for name, param in model.named_parameters()},
        "parameters": [param.detach() for param in model.parameters()],
        "the parameters' requires_grad": [param.requires_grad for param in model.parameters()],
    }


exercise = Exercise("data_parallel.average_gradients", title="Average the gradients", draw=draw,
    trial=gradients_afterwards, inputs_matter=False, asynchronous=True, task="""
    Backward has run, and each rank has the gradients of its own part of the batch. Replace each gradient by its average
    over ranks. A rank that did not use a parameter has no gradient for it: `param.grad` is None. This rank contributes
    zeros, and gets the average like the other ranks. Do not change frozen parameters, those with `requires_grad=False`.
    """, hints="""
    What is the gradient of the mean of four losses, if you know the gradient of each?

    An all-reduce sums over ranks, in place. All ranks must call it, for the same parameters in the same order. A
    parameter that a rank did not use has the gradient 0 there.

    `dist.all_reduce(param.grad)`, `dist.get_world_size()`, and `torch.zeros_like(param)` if `param.grad` is None.

    ```python
    for param in model.parameters():
        if not param.requires_grad:
            continue
        if param.grad is None:
            param.grad = ...
        dist.all_reduce(...)
        ...
    ```
    """, explanation="""
    Differentiation is linear: the gradient of the mean of the losses is the mean of the gradients. `requires_grad` is
    the same on every rank, so it may decide whether to call. Whether there is a gradient can differ from rank to rank,
    so it may not decide. One case is left open here: a parameter that no rank used. A gradient of zeros differs from no
    gradient, because weight decay and momentum still change the parameter. With `find_unused_parameters=True`, torch's
    own engine (DDP) and the course's `zero.DataParallel` find such parameters and leave them without a gradient.
    Without it, both raise an error: DDP only in the next forward, after a step with gradients that it has not averaged.
    """)


@exercise
def average_gradients(model: nn.Module) -> None:
    """Replace the gradient of each trainable parameter by its average over ranks, on every rank.

    A rank without a gradient for a trainable parameter contributes zeros, and gets the average, too.
    A frozen parameter has no gradient on any rank, and gets none.
    """
    for param in model.parameters():
        if not param.requires_grad:
            continue
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


exercise.edit("sum-for-mean", {"\nparam.grad /= dist.get_world_size()": ""}, """
    Each gradient is the sum over ranks. The loss of the whole batch is the average of the ranks' losses, and so is its
    gradient: with a sum, the step of SGD is too long by a factor of world size. (If you wrote `grad = grad / n`: that
    makes a new tensor, and the parameter keeps the sum.) Next: divide `param.grad` by `dist.get_world_size()`.""")

exercise.edit("skips-where-there-is-none", {"param.grad = torch.zeros_like(param)": "continue"}, """
    A rank that has no gradient for a parameter skips the all-reduce of this parameter. The other ranks wait for it, or
    their all-reduce is matched with its next one. A rank's own gradients must not decide whether it calls.
    Next: call for every trainable parameter, and contribute zeros if there is no gradient.""")

exercise.edit("does-not-keep-it", {"if param.grad is None:\nparam.grad = torch.zeros_like(param)":
    "grad = torch.zeros_like(param) if param.grad is None else param.grad",
    "all_reduce(param.grad)": "all_reduce(grad)", "param.grad /=": "grad /="}, """
    A rank without a gradient drops the average: its parameter keeps `grad = None`. The optimizer would skip the
    parameter on this rank only. Next: put the zeros into `param.grad` before the all-reduce.""")

exercise.edit("not-written-back", {
    "if param.grad is None:\nparam.grad = torch.zeros_like(param)\ndist.all_reduce(param.grad)\n"
    "param.grad /= dist.get_world_size()":
    "grad = torch.zeros_like(param) if param.grad is None else param.grad\n"
    "average = grad / dist.get_world_size()\ndist.all_reduce(average)"}, """
    `param.grad` keeps its old value on every rank. An average in a new tensor, such as `grad / n` makes, does not
    change it. Next: reduce `param.grad` itself, or assign the average to it.""")

exercise.edit("average-not-stored", {
    "if param.grad is None:\nparam.grad = torch.zeros_like(param)\ndist.all_reduce(param.grad)\n"
    "param.grad /= dist.get_world_size()":
    "grad = torch.zeros_like(param) if param.grad is None else param.grad\n"
    "dist.all_reduce(grad)\ngrad = grad / dist.get_world_size()"}, """
    `param.grad` is still the sum over ranks, or None on a rank that had no gradient. If you divide, the average is in a
    new tensor, such as `grad = grad / n` makes, and does not reach `param.grad`.
    Next: store the average in `param.grad`, on every rank.""")

exercise.edit("frozen-too", {"if not param.requires_grad:\ncontinue\n": ""}, """
    Frozen parameters get a gradient of zeros. An optimizer with weight decay would then change parameters that must not
    change. Next: skip parameters with `requires_grad=False`. They are the same on every rank, so all
    ranks still make the same calls.""")

exercise.edit("by-those-who-have-one", {"if param.grad is None:":
    "count = torch.tensor(float(param.grad is not None))\nif param.grad is None:",
    "dist.all_reduce(param.grad)": "dist.all_reduce(param.grad)\ndist.all_reduce(count)",
    "dist.get_world_size()": "count"}, """
    You divide by the number of ranks that have a gradient. The loss is averaged over all ranks. If a rank's part of the
    batch does not depend on this parameter, its gradient there is 0, and the average includes this 0.
    Next: divide by `dist.get_world_size()`.""")

exercise.edit("averages-the-parameters", {
    "if param.grad is None:\nparam.grad = torch.zeros_like(param)\ndist.all_reduce(param.grad)\nparam.grad /=":
    "dist.all_reduce(param.data)\nparam.data /="}, """
    You average the parameters and do not change the gradients. Before a step the parameters are equal on all ranks;
    the gradients differ. Next: reduce `param.grad`, not `param.data`.""")


@exercise.mistake
def flattens_what_there_is(model: nn.Module) -> None:
    """You join only the gradients that this rank has. A rank that lacks one passes a shorter tensor than the other
    ranks, or different parameters. Next: put zeros into the flat tensor for a parameter without a gradient."""
    params = [param for param in model.parameters() if param.grad is not None]
    flat = torch.cat([param.grad.flatten() for param in params if param.grad is not None])
    dist.all_reduce(flat)
    for param, piece in zip(params, flat.split([param.numel() for param in params]), strict=True):
        param.grad = piece.view_as(param) / dist.get_world_size()


exercise.variant_edit("divides-first", {"dist.all_reduce(param.grad)\nparam.grad /= dist.get_world_size()":
    "param.grad = param.grad / dist.get_world_size()\ndist.all_reduce(param.grad)"})


@exercise.variant
def all_in_one(model: nn.Module) -> None:
    params = [param for param in model.parameters() if param.requires_grad]
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat)
    for param, piece in zip(params, flat.split([param.numel() for param in params]), strict=True):
        param.grad = piece.view(param.shape) / dist.get_world_size()
