"""Every rank starts from the model of rank 0."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...exercises import Case, Exercise, Solution, draw_world_size


class Model(nn.Module):
    """Parameters, one of them frozen and some deep inside, and buffers, one of them not in the state dict, and one of
    whole numbers that float32 does not have."""

    def __init__(self, width: int, frozen: bool, hidden_buffer: bool) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(2, width), nn.BatchNorm1d(width)
        self.last = nn.Sequential(nn.Sequential(nn.Linear(width, 1)))
        self.scale = nn.Parameter(torch.randn(()))
        self.first.weight.requires_grad_(not frozen)
        running_mean, batches = self.norm.running_mean, self.norm.num_batches_tracked
        assert running_mean is not None and batches is not None
        running_mean.normal_()
        batches.random_(2**24, 2**25).bitwise_or_(1)
        if hidden_buffer:
            self.register_buffer("mask", torch.randn(width), persistent=False)


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = draw_world_size(rng, number), rng.randint(2, 4), rng.getrandbits(32)
    frozen, hidden_buffer = number in (1, 4), number in (2, 4)

    def args(rank: int) -> tuple[nn.Module]:
        torch.manual_seed(seed + rank)
        return (Model(width, frozen, hidden_buffer),)

    what = ", ".join(["a frozen parameter"] * frozen + ["a buffer that is not in the state dict"] * hidden_buffer)
    return Case(world_size=world_size, args=args, what=what)


def model_afterwards(solution: Solution, model: nn.Module) -> dict[str, Any]:
    before, memory, trained = list(model.parameters()), _addresses(model), _trained(model)
    solution(model)
    kept = all(param is was for param, was in zip(model.parameters(), before, strict=True))
    values = {name: values.detach() for name, values in [*model.named_parameters(), *model.named_buffers()]}
    return values | {
        "the parameters are still the same objects": kept,
        "parameters and buffers are still in the same memory": _addresses(model) == memory,
        "the same parameters are trained": _trained(model) == trained,
    }


def _addresses(model: nn.Module) -> list[int]:
    return [tensor.data_ptr() for tensor in [*model.parameters(), *model.buffers()]]


def _trained(model: nn.Module) -> list[bool]:
    return [param.requires_grad for param in model.parameters()]


exercise = Exercise("data_parallel.broadcast_model", title="Start alike", draw=draw, trial=model_afterwards,
    inputs_matter=False, task="""
    `model` has different values on every rank. Give every rank the values of rank 0: each parameter and each buffer, in
    place. The model's parameters stay the same objects, because an optimizer may already hold them.""", hints="""
    Which tensors does a model hold besides its parameters?

    A broadcast overwrites a tensor on every rank with the values of one rank. Each tensor of the model needs one.

    `model.parameters()`, `model.buffers()` and `dist.broadcast(tensor, src=...)`. `param.detach()` is the memory of a
    parameter, without autograd.

    ```python
    for tensor in [*model.parameters(), ...]:
        dist.broadcast(tensor.detach(), src=...)
    ```
    """, explanation="""
    `detach()` returns a tensor that shares the parameter's memory and that autograd does not watch, so the broadcast
    writes into the model itself. Frozen parameters and buffers are included: forward uses them, and no gradient ever
    makes them equal. From here on, equal gradients keep the ranks equal.""")


@exercise
def broadcast_model(model: nn.Module) -> None:
    """Give every rank the parameters and buffers that `model` has on rank 0, in place."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


exercise.edit("parameters-only", {"[*model.parameters(), *model.buffers()]": "model.parameters()"}, """
    The parameters are those of rank 0, and each rank keeps its own buffers. Buffers, such as the running statistics of
    a batch norm, are part of what the model computes. Next: broadcast `model.buffers()`, too.""")

exercise.edit("trainable-only", {"*model.parameters()": "*(p for p in model.parameters() if p.requires_grad)"}, """
    You leave out the frozen parameters. They are not trained, so nothing ever makes them equal: each rank keeps its
    own. Next: remove the condition on `requires_grad`.""")

exercise.edit("state-dict-only", {"[*model.parameters(), *model.buffers()]": "model.state_dict().values()"}, """
    A state dict holds what a checkpoint needs. A buffer that was registered with `persistent=False` is not in it, and
    each rank keeps its own values. Next: use `model.parameters()` and `model.buffers()`.""")

exercise.edit("own-rank-as-src", {"src=0": "src=dist.get_rank()"}, """
    Each rank passes its own rank as `src`. A broadcast has one source, and every rank must pass the same.
    Next: name the same source on every rank.""")

exercise.edit("only-rank-zero-calls", {"dist.broadcast": "if dist.get_rank() == 0:\n    dist.broadcast"}, """
    Only rank 0 calls the broadcast, and it waits for the other ranks. A rank that receives has to call it, too.
    Next: take the broadcast out of the `if`: its argument already says which rank sends.""")

exercise.edit("into-a-copy", {"tensor.detach()": "tensor.detach().clone()"}, """
    Every model keeps its own values. A broadcast into a copy, such as `clone()` makes, does not change the model.
    Next: broadcast `tensor.detach()`, which shares the model's memory, or copy the received values into the model.""")

exercise.edit("averages", {"for tensor in [*model.parameters(), *model.buffers()]:":
    "for param in model.parameters():\n    dist.all_reduce(param.detach())\n"
    "    param.detach().div_(dist.get_world_size())\nfor tensor in model.buffers():"}, """
    The parameters are the average of all ranks' models. They are equal everywhere, but an average of random values is
    usually smaller than one of them, because independent values partly cancel. Next: use the collective that copies one
    rank's tensor to all.""")


exercise.edit("into-new-memory", {"dist.broadcast(tensor.detach(), src=0)":
    "values = tensor.detach().clone()\ndist.broadcast(values, src=0)\ntensor.data = values"}, """
    The values are right, but each tensor now has new memory. Something else may use the old memory: in ZeRO, parameters
    are views of one flat tensor, and an assignment to `data` cuts them off from it.
    Next: write into the memory that the tensors have.""")


exercise.edit("in-float32", {"dist.broadcast(tensor.detach(), src=0)":
    "values = tensor.detach().float()\ndist.broadcast(values, src=0)\ntensor.detach().copy_(values)"}, """
    The parameters are right, but the batch norm's count of batches is rounded, as by a trip through float32. The count
    is an int64, and float32 has only 24 bits for the digits of a number.
    Next: broadcast each tensor in the dtype that it has.""")


@exercise.mistake
def new_parameters(model: nn.Module) -> None:
    """The values are right, but the model has new parameters. An optimizer that was made before updates the old ones,
    and the model never learns. Next: write into the existing parameters."""
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            values = param.detach().clone()
            dist.broadcast(values, src=0)
            setattr(module, name, nn.Parameter(values, requires_grad=param.requires_grad))
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


@exercise.variant
def copies_what_arrives(model: nn.Module) -> None:
    with torch.no_grad():
        for tensor in [*model.buffers(), *model.parameters()]:
            arrived = tensor.clone()
            dist.broadcast(arrived, src=0)
            tensor.copy_(arrived)


@exercise.variant
def zeros_and_a_sum(model: nn.Module) -> None:
    for tensor in [*model.parameters(), *model.buffers()]:
        if dist.get_rank() != 0:
            tensor.detach().zero_()
        dist.all_reduce(tensor.detach())
