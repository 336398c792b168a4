"""The average of the ranks' gradients, one all-reduce for each parameter."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size
from . import stubs
from .data import draw_shapes, draw_unused, give_gradients, parameters, ranks


def average_gradients(model: nn.Module) -> None:
    """Replace the gradient of each trainable parameter by its average over ranks, on every rank."""
    for param in model.parameters():
        if not param.requires_grad:
            continue
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.requires_grad]


def gradient_or_zeros(param: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad


def sum_for_mean(model: nn.Module) -> None:
    for param in trainable(model):
        param.grad = gradient_or_zeros(param)
        dist.all_reduce(param.grad)


def skips_where_there_is_none(model: nn.Module) -> None:
    for param in model.parameters():
        if param.grad is not None:
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()


def does_not_keep_it(model: nn.Module) -> None:
    for param in trainable(model):
        grad = gradient_or_zeros(param)
        dist.all_reduce(grad)
        grad /= dist.get_world_size()


def not_written_back(model: nn.Module) -> None:
    for param in trainable(model):
        average = gradient_or_zeros(param) / dist.get_world_size()
        dist.all_reduce(average)


def adds_nothing(model: nn.Module) -> None:
    for param in trainable(model):
        gradient_or_zeros(param)


def divides_only(model: nn.Module) -> None:
    for param in trainable(model):
        param.grad = gradient_or_zeros(param) / dist.get_world_size()


def divides_twice(model: nn.Module) -> None:
    for param in trainable(model):
        param.grad = gradient_or_zeros(param) / dist.get_world_size()
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def frozen_too(model: nn.Module) -> None:
    for param in model.parameters():
        param.grad = gradient_or_zeros(param)
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def by_those_who_have_one(model: nn.Module) -> None:
    for param in trainable(model):
        count = torch.tensor(float(param.grad is not None))
        param.grad = gradient_or_zeros(param)
        dist.all_reduce(param.grad)
        dist.all_reduce(count)
        param.grad /= count


def gradient_of_rank_zero(model: nn.Module) -> None:
    for param in trainable(model):
        param.grad = gradient_or_zeros(param)
        dist.broadcast(param.grad, src=0)


def average_on_rank_zero(model: nn.Module) -> None:
    for param in trainable(model):
        param.grad = gradient_or_zeros(param)
        dist.reduce(param.grad, dst=0)
        if dist.get_rank() == 0:
            param.grad /= dist.get_world_size()


def averages_the_parameters(model: nn.Module) -> None:
    for param in trainable(model):
        dist.all_reduce(param.data)
        param.data /= dist.get_world_size()


def divides_first(model: nn.Module) -> None:
    for param in trainable(model):
        param.grad = gradient_or_zeros(param) / dist.get_world_size()
        dist.all_reduce(param.grad)


def all_in_one(model: nn.Module) -> None:
    params = trainable(model)
    flat = torch.cat([gradient_or_zeros(param).reshape(-1) for param in params])
    dist.all_reduce(flat)
    for param, piece in zip(params, flat.split([param.numel() for param in params]), strict=True):
        param.grad = piece.view(param.shape) / dist.get_world_size()


def gathers(model: nn.Module) -> None:
    for param in trainable(model):
        everyones = [torch.zeros_like(param) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, gradient_or_zeros(param))
        param.grad = torch.stack(everyones).mean(dim=0)


def draw(rng: random.Random, number: int) -> Case:
    world_size, count, seed = draw_world_size(rng, number), rng.randint(3, 5), rng.getrandbits(32)
    shapes = draw_shapes(rng, count)
    frozen = count // 2 if number > 2 else None
    # Something is unused in every case but the first, unless there is one rank alone.
    unused = draw_unused(rng, count, world_size) if number > 0 else [[] for _ in range(world_size)]

    def args(rank: int) -> tuple[nn.Module]:
        params = parameters(shapes, torch.float32, seed + rank)  # averaging these would show
        give_gradients(params, seed, rank, unused[rank])
        if frozen is not None:
            params[frozen].grad = None
            params[frozen].requires_grad_(False)
        return (nn.ParameterList(params),)

    about = f"{ranks(world_size)}, {count} parameters"
    about += ", some without a gradient on one rank" * any(unused) + ", one frozen" * (frozen is not None)
    return Case(world_size=world_size, args=args, about=about)


def gradients_afterwards(solution: Solution, model: nn.Module) -> dict[str, Any]:
    solution(model)
    return {
        "gradients": {name: param.grad for name, param in model.named_parameters()},
        "parameters": [param.detach() for param in model.parameters()],
    }


AVERAGE_GRADIENTS = Exercise(
    name="data_parallel.average_gradients",
    title="Average the gradients",
    task="Backward has run, and each rank has the gradients of its own part of the batch. Replace each by the average "
    "over ranks. A rank that did not use a parameter has no gradient for it (`param.grad` is None): it brings zeros, "
    "and gets the average like the others. Frozen parameters, those with `requires_grad=False`, are left alone.",
    stub=stubs.average_gradients,
    reference=average_gradients,
    draw=draw,
    trial=gradients_afterwards,
    inputs_matter=False,
    variants={"divides-first": divides_first, "all-in-one": all_in_one, "gathers": gathers},
    mistakes=[
        Mistake(
            id="sum-for-mean",
            solution=sum_for_mean,
            told="Each gradient is the sum over ranks. The loss of the whole batch is the average of the ranks' "
            "losses, and so is its gradient: a sum makes the step as many times too long as there are ranks.",
            action="Divide by `dist.get_world_size()`.",
        ),
        Mistake(
            id="skips-where-there-is-none",
            solution=skips_where_there_is_none,
            told="A rank that has no gradient for a parameter skips its all-reduce, and the others wait for it, or "
            "meet it in the next one. Whether to call must not depend on what this rank has.",
            action="Call for every trainable parameter, and bring zeros where there is no gradient.",
        ),
        Mistake(
            id="does-not-keep-it",
            solution=does_not_keep_it,
            told="A rank without a gradient brings zeros and then drops the average that it gets: its parameter keeps "
            "`grad = None`, and the optimizer would leave it as it is on that rank alone.",
            action="Put the zeros into `param.grad` before the all-reduce.",
        ),
        Mistake(
            id="not-written-back",
            solution=not_written_back,
            told="You average a new tensor, and `param.grad` still holds what it did: `grad / n` makes a new tensor.",
            action="Let `param.grad` be the tensor that is reduced, or assign the result to it.",
        ),
        Mistake(
            id="adds-nothing",
            solution=adds_nothing,
            told="No rank sends anything, and every gradient stays as it was.",
            action="Sum each gradient over ranks with `dist.all_reduce`, then divide.",
        ),
        Mistake(
            id="divides-only",
            solution=divides_only,
            told="Every rank divides its own gradient by the number of ranks, and nothing is added up.",
            action="Sum over ranks with `dist.all_reduce`.",
        ),
        Mistake(
            id="divides-twice",
            solution=divides_twice,
            told="You divide by the number of ranks before the sum and after it. Either is right; both are too much.",
            action="Leave one of the divisions out.",
        ),
        Mistake(
            id="frozen-too",
            solution=frozen_too,
            told="Frozen parameters get a gradient of zeros. To an optimizer this is a gradient like any other: with "
            "weight decay or momentum it would change what was to stay fixed.",
            action="Skip parameters with `requires_grad=False`. They are the same ones on every rank, so ranks agree.",
        ),
        Mistake(
            id="by-those-who-have-one",
            solution=by_those_who_have_one,
            told="You divide by the number of ranks that have a gradient. The loss is averaged over all ranks, also "
            "those whose part of the batch does not depend on this parameter: their gradient is 0, and counts.",
            action="Divide by `dist.get_world_size()`.",
        ),
        Mistake(
            id="gradient-of-rank-zero",
            solution=gradient_of_rank_zero,
            told="Every rank gets the gradient of rank 0. The ranks stay equal, but all batches besides rank 0's are "
            "ignored.",
            action="Sum over ranks with `dist.all_reduce`, then divide.",
        ),
        Mistake(
            id="average-on-rank-zero",
            solution=average_on_rank_zero,
            told="Only rank 0 has the average: `dist.reduce` brings the sum to one rank.",
            action="Use `dist.all_reduce`, which brings it to all.",
        ),
        Mistake(
            id="averages-the-parameters",
            solution=averages_the_parameters,
            told="You average the parameters, and leave the gradients as they are. Before the step the parameters are "
            "equal anyhow; it is the gradients that differ.",
            action="Reduce `param.grad`, not `param.data`.",
        ),
    ],
    hints=[
        "What is the gradient of the mean of four losses, if you know the gradient of each?",
        "An all-reduce sums over ranks, in place, and all ranks must call it, for the same parameters in the same "
        "order. A parameter that a rank did not use has the gradient 0 there.",
        "`dist.all_reduce(param.grad)`, `dist.get_world_size()`, and `torch.zeros_like(param)` where `param.grad` is "
        "None.",
        "```python\nfor param in model.parameters():\n    if not param.requires_grad:\n        continue\n"
        "    if param.grad is None:\n        param.grad = ...\n    dist.all_reduce(...)\n    ...\n```",
    ],
    explanation="Differentiation is linear: the gradient of the mean of the losses is the mean of the gradients. "
    "`requires_grad` is the same on every rank, so it may decide whether to call; whether there is a gradient may "
    "differ from rank to rank, so it may not. One case is left open here: a parameter that no rank has used. Zeros "
    "for it are not quite nothing, for weight decay and momentum still move it; torch's DDP and the course's own "
    "`zero.DataParallel` find such parameters and leave them without a gradient.",
)
