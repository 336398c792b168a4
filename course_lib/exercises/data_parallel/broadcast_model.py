"""Every rank starts from the model of rank 0."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size
from . import stubs
from .data import ranks


def broadcast_model(model: nn.Module) -> None:
    """Give every rank the parameters and buffers that `model` has on rank 0, in place."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def everything(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def trainable(model: nn.Module) -> list[torch.Tensor]:
    return [param for param in model.parameters() if param.requires_grad]


def broadcast(tensor: torch.Tensor) -> None:
    dist.broadcast(tensor, src=0)


def average(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def doing(
    call: Callable[[torch.Tensor], object] = broadcast,
    tensors: Callable[[nn.Module], Iterable[torch.Tensor]] = everything,
    here: Callable[[int], bool] = lambda rank: True,
) -> Solution:
    """Calls `call` with each of `tensors` of the model, on ranks where `here` is true."""

    def solution(model: nn.Module) -> None:
        for tensor in tensors(model) if here(dist.get_rank()) else ():
            call(tensor.detach())

    return solution


def averages(model: nn.Module) -> None:
    doing(average, nn.Module.parameters)(model)
    doing(broadcast, nn.Module.buffers)(model)


def new_parameters(model: nn.Module) -> None:
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            values = param.detach().clone()
            dist.broadcast(values, src=0)
            setattr(module, name, nn.Parameter(values, requires_grad=param.requires_grad))
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def copies_what_arrives(model: nn.Module) -> None:
    with torch.no_grad():
        for tensor in [*model.buffers(), *model.parameters()]:
            arrived = tensor.clone()
            dist.broadcast(arrived, src=0)
            tensor.copy_(arrived)


def zeros_and_a_sum(model: nn.Module) -> None:
    for tensor in [*model.parameters(), *model.buffers()]:
        if dist.get_rank() != 0:
            tensor.detach().zero_()
        dist.all_reduce(tensor.detach())


class Model(nn.Module):
    """Parameters, one of them frozen, and buffers, one of them of whole numbers and one not in the state dict."""

    def __init__(self, width: int, frozen: bool, hidden_buffer: bool) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1)
        self.scale = nn.Parameter(torch.randn(()))
        self.first.weight.requires_grad_(not frozen)
        running_mean, batches = self.norm.running_mean, self.norm.num_batches_tracked
        assert running_mean is not None and batches is not None
        running_mean.normal_()
        batches.random_(1, 100)
        if hidden_buffer:
            self.register_buffer("mask", torch.randn(width), persistent=False)


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = draw_world_size(rng, number), rng.randint(2, 4), rng.getrandbits(32)
    frozen, hidden_buffer = number in (1, 4), number in (2, 4)

    def args(rank: int) -> tuple[nn.Module]:
        torch.manual_seed(seed + rank)
        return (Model(width, frozen, hidden_buffer),)

    about = (
        ranks(world_size) + ", a frozen parameter" * frozen + ", a buffer that is not in the state dict" * hidden_buffer
    )
    return Case(world_size=world_size, args=args, about=about)


def model_afterwards(solution: Solution, model: nn.Module) -> dict[str, Any]:
    before = list(model.parameters())
    solution(model)
    kept = all(param is was for param, was in zip(model.parameters(), before, strict=True))
    values = {name: values.detach() for name, values in [*model.named_parameters(), *model.named_buffers()]}
    return values | {"the parameters are still the same objects": kept}


BROADCAST_MODEL = Exercise(
    name="data_parallel.broadcast_model",
    title="Start alike",
    task="On every rank `model` has other values. Give all of them those of rank 0: each parameter and each buffer, in "
    "place. The model's parameters stay the same objects, for an optimizer may know them already.",
    stub=stubs.broadcast_model,
    reference=broadcast_model,
    draw=draw,
    trial=model_afterwards,
    inputs_matter=False,
    variants={"copies-what-arrives": copies_what_arrives, "zeros-and-a-sum": zeros_and_a_sum},
    mistakes=[
        Mistake(
            id="parameters-only",
            solution=doing(tensors=nn.Module.parameters),
            told="The parameters are those of rank 0, and the buffers are each rank's own. Buffers, such as the "
            "running statistics of a batch norm, are part of what the model computes.",
            action="Go through `model.buffers()` as well.",
        ),
        Mistake(
            id="trainable-only",
            solution=doing(tensors=lambda model: [*trainable(model), *model.buffers()]),
            told="You leave out the parameters that are frozen. They are not trained, so nothing will ever make them "
            "equal later: each rank would keep its own.",
            action="Drop the condition on `requires_grad`.",
        ),
        Mistake(
            id="trainable-parameters-only",
            solution=doing(tensors=trainable),
            told="You leave out the parameters that are frozen, and the buffers. Both are part of what the model "
            "computes, and nothing makes them equal later.",
            action="Drop the condition on `requires_grad`, and go through `model.buffers()` as well.",
        ),
        Mistake(
            id="state-dict-only",
            solution=doing(tensors=lambda model: model.state_dict().values()),
            told="A state dict holds what a checkpoint needs. A buffer that was registered with `persistent=False` is "
            "not in it, and keeps this rank's values.",
            action="Go through `model.parameters()` and `model.buffers()`.",
        ),
        Mistake(
            id="own-rank-as-src",
            solution=doing(lambda tensor: dist.broadcast(tensor, src=dist.get_rank())),
            told="Each rank names itself as `src`. A broadcast has one source, and every rank must name the same.",
            action="Name rank 0 on every rank: `src=0`.",
        ),
        Mistake(
            id="only-rank-zero-calls",
            solution=doing(here=lambda rank: rank == 0),
            told="Rank 0 alone calls the broadcast, and waits for the others. Those who receive have to call it, too.",
            action="Take the broadcast out of the `if`: `src=0` says who gives.",
        ),
        Mistake(
            id="only-the-others-call",
            solution=doing(here=lambda rank: rank != 0),
            told="All ranks but rank 0 call the broadcast, and wait for it. Who gives has to call it, too.",
            action="Take the broadcast out of the `if`: `src=0` says who gives.",
        ),
        Mistake(
            id="last-rank-as-src",
            solution=doing(lambda tensor: dist.broadcast(tensor, src=dist.get_world_size() - 1)),
            told="All ranks hold the model of the last rank. Rank 0's was asked for.",
            action="Use `src=0`.",
        ),
        Mistake(
            id="into-a-copy",
            solution=doing(lambda tensor: broadcast(tensor.clone())),
            told="The broadcast writes into a copy of each tensor, and the copy is dropped: the model stays as it was. "
            "`clone()` makes such a copy.",
            action="Broadcast into the model's own memory, which `tensor.detach()` shares, or copy back what arrived.",
        ),
        Mistake(
            id="gives-nothing",
            solution=doing(torch.clone),
            told="No rank sends anything, and every model stays as it was.",
            action="Broadcast each tensor of the model from rank 0.",
        ),
        Mistake(
            id="averages",
            solution=averages,
            told="The parameters are the average of all ranks' models. They are equal everywhere, but an average of "
            "random starts is a smaller start than any of them: independent values partly cancel.",
            action="Use `dist.broadcast` with `src=0`.",
        ),
        Mistake(
            id="averages-parameters",
            solution=doing(average, nn.Module.parameters),
            told="The parameters are the average of all ranks' models, and the buffers are each rank's own. An average "
            "of random starts is a smaller start than any of them: independent values partly cancel.",
            action="Use `dist.broadcast` with `src=0`, on parameters and on buffers.",
        ),
        Mistake(
            id="sums",
            solution=doing(dist.all_reduce),
            told="An all-reduce adds up the models of all ranks. The values of rank 0 alone were asked for.",
            action="Use `dist.broadcast` with `src=0`.",
        ),
        Mistake(
            id="new-parameters",
            solution=new_parameters,
            told="The values are right, but the model has new parameters. An optimizer that was made before goes on "
            "updating the old ones, and the model never learns.",
            action="Write into the parameters that are there: `dist.broadcast(param.detach(), src=0)`.",
        ),
    ],
    hints=[
        "Which tensors does a model hold besides its parameters?",
        "A broadcast overwrites a tensor on every rank with what it holds on one. Each tensor of the model needs one.",
        "`model.parameters()`, `model.buffers()` and `dist.broadcast(tensor, src=...)`. A parameter's memory, without "
        "autograd, is `param.detach()`.",
        "```python\nfor tensor in [*model.parameters(), ...]:\n    dist.broadcast(tensor.detach(), src=...)\n```",
    ],
    explanation="`detach()` gives a tensor that shares the parameter's memory and that autograd does not watch, so the "
    "broadcast writes into the model itself. Frozen parameters and buffers go along: they take part in forward, and no "
    "gradient will ever make them equal. After this one call equal gradients keep the ranks equal for ever.",
)
