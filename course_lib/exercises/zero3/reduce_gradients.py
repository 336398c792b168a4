"""A unit's gradients become a shard of the average, and everything that is whole is freed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..checking.rules import at_most, lets_go, only_calls
from ..data_parallel.data import draw_unused, give_gradients, ranks
from ..declare import Case, Exercise, Mistake
from ..ranks.data import dtype_name, whole_numbers
from . import stubs
from .data import DTYPES, Holder, Shapes, draw_shapes, draw_world_size, mark_when_gone, memory_of, poisoned_unit
from .unit import Unit, free, gather


def reduce_gradients(unit: Unit) -> None:
    """Add this rank's shard of the averaged gradients to `unit.shard.grad`; free all that is whole."""
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in unit.params]
    flat_grad = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
    flat_grad = F.pad(flat_grad, (0, unit.flat.numel() - flat_grad.numel()))
    grad_shard = torch.empty_like(unit.shard)
    dist.reduce_scatter_single(grad_shard, flat_grad)
    unit.shard.grad = grad_shard if unit.shard.grad is None else unit.shard.grad + grad_shard
    for param in unit.params:
        param.grad = None
    free(unit)


def flat_grads(unit: Unit) -> Tensor:
    """The gradients one after the other, zeros for those that are missing; no padding."""
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in unit.params]
    return torch.cat([grad.reshape(-1) for grad in grads])


def padded(unit: Unit, flat: Tensor) -> Tensor:
    return F.pad(flat, (0, unit.flat.numel() - flat.numel()))


def averages(unit: Unit) -> Tensor:
    """This rank's share in the averages, padded: what is to be summed over ranks."""
    return padded(unit, flat_grads(unit)) / dist.get_world_size()


def reduced(flat_grad: Tensor) -> Tensor:
    shard = flat_grad.new_empty(flat_grad.numel() // dist.get_world_size())
    dist.reduce_scatter_single(shard, flat_grad)
    return shard


def my_part(flat_grad: Tensor) -> Tensor:
    return flat_grad.chunk(dist.get_world_size())[dist.get_rank()]


def add_to_shard(unit: Unit, grad: Tensor) -> None:
    unit.shard.grad = grad if unit.shard.grad is None else unit.shard.grad + grad


def free_all(unit: Unit) -> None:
    for param in unit.params:
        param.grad = None
    free(unit)


def sum_for_mean(unit: Unit) -> None:
    add_to_shard(unit, reduced(padded(unit, flat_grads(unit))))
    free_all(unit)


def overwrites(unit: Unit) -> None:
    unit.shard.grad = reduced(averages(unit))
    free_all(unit)


def divides_what_was_there(unit: Unit) -> None:
    sum_for_mean(unit)
    assert unit.shard.grad is not None
    unit.shard.grad /= dist.get_world_size()


def all_reduces(unit: Unit) -> None:
    flat_grad = averages(unit)
    dist.all_reduce(flat_grad)
    add_to_shard(unit, my_part(flat_grad).clone())
    free_all(unit)


def without_padding(unit: Unit) -> None:
    shard = torch.zeros_like(unit.shard.detach())
    dist.reduce_scatter_single(shard, flat_grads(unit) / dist.get_world_size())
    add_to_shard(unit, shard)
    free_all(unit)


def padding_of_the_parameters(unit: Unit) -> None:
    grads, flat_grad = flat_grads(unit), unit.flat.clone()
    flat_grad[: grads.numel()] = grads
    add_to_shard(unit, reduced(flat_grad / dist.get_world_size()))
    free_all(unit)


def shard_of_the_whole(unit: Unit) -> None:
    flat_grad = averages(unit)
    shard = my_part(flat_grad)
    shard.copy_(reduced(flat_grad))
    if unit.shard.grad is not None:
        shard += unit.shard.grad
    unit.shard.grad = shard
    free_all(unit)


def something_kept(unit: Unit) -> None:
    flat_grad = averages(unit)
    unit.__dict__["norm"] = lambda: flat_grad.norm()
    add_to_shard(unit, reduced(flat_grad))
    free_all(unit)


def reduces_twice(unit: Unit) -> None:
    add_to_shard(unit, reduced(averages(unit)))
    add_to_shard(unit, reduced(averages(unit)))
    free_all(unit)


def parameters_kept(unit: Unit) -> None:
    add_to_shard(unit, reduced(averages(unit)))
    for param in unit.params:
        param.grad = None


def gradients_kept(unit: Unit) -> None:
    add_to_shard(unit, reduced(averages(unit)))
    free(unit)


def frees_in_name(unit: Unit) -> None:
    parameters_kept(unit)
    unit.flat = unit.finish = None


def present_grads(unit: Unit) -> Tensor:
    return torch.cat([param.grad.reshape(-1) for param in unit.params if param.grad is not None])


def skips_missing(unit: Unit) -> None:
    add_to_shard(unit, reduced(padded(unit, present_grads(unit)) / dist.get_world_size()))
    free_all(unit)


def skips_missing_and_padding(unit: Unit) -> None:
    flat_grad = present_grads(unit)
    flat_grad = F.pad(flat_grad, (0, -flat_grad.numel() % dist.get_world_size()))
    add_to_shard(unit, reduced(flat_grad / dist.get_world_size()))
    free_all(unit)


def own_gradients(unit: Unit) -> None:
    add_to_shard(unit, my_part(averages(unit)).clone())
    free_all(unit)


def into_the_shard(unit: Unit) -> None:
    with torch.no_grad():
        unit.shard.add_(reduced(averages(unit)))
    free_all(unit)


def in_place(unit: Unit) -> None:
    flat_grad = torch.zeros_like(unit.flat)
    begin = 0
    for param, shape in zip(unit.params, unit.shapes, strict=True):
        if param.grad is not None:
            flat_grad[begin : begin + shape.numel()] = param.grad.reshape(-1)
            param.grad = None
        begin += shape.numel()
    free(unit)
    grad_shard = torch.zeros_like(unit.shard.data)
    dist.reduce_scatter_single(grad_shard, flat_grad)
    grad_shard.div_(dist.get_world_size())
    if unit.shard.grad is not None:
        grad_shard.add_(unit.shard.grad)
    unit.shard.grad = grad_shard


def with_a_list(unit: Unit) -> None:
    size = unit.shard.numel()
    flat = unit.flat.new_zeros(size * dist.get_world_size())
    begin = 0
    for param in unit.params:
        if param.grad is not None:
            flat[begin:].narrow(0, 0, param.numel()).add_(param.grad.view(-1), alpha=1 / dist.get_world_size())
        begin += param.numel()
        param.grad = None
    mine = unit.shard.new_empty(size).detach()
    dist.reduce_scatter(mine, list(flat.split(size)))
    unit.shard.grad = mine if unit.shard.grad is None else mine.add(unit.shard.grad)
    free(unit)


def draw(rng: random.Random, number: int) -> Case:
    world_size, dtype, seed = draw_world_size(rng, number), DTYPES[number % 2], rng.getrandbits(32)
    shapes, twice = draw_shapes(rng, world_size), number > 0
    unused = draw_unused(rng, len(shapes), world_size) if number > 0 else [[] for _ in range(world_size)]
    return Case(
        world_size=world_size,
        args=lambda rank: (shapes, dtype, seed, unused[rank], twice),
        about=f"{ranks(world_size)}, {sum(torch.Size(shape).numel() for shape in shapes)} elements, "
        f"{dtype_name(dtype)}{', the second of two micro-batches' * twice}"
        f"{', a parameter without a gradient on one rank' * any(unused)}",
    )


REDUCED = "after the gradients are reduced"


def reduced_shard(
    solution: Callable[[Unit], None], shapes: Shapes, dtype: torch.dtype, seed: int, unused: list[int], twice: bool
) -> dict[str, Any]:
    unit = poisoned_unit(Holder(shapes, dtype, seed))
    if twice:
        unit.shard.grad = whole_numbers(unit.shard.numel(), seed=seed + 7, rank=dist.get_rank(), dtype=dtype)
    gather(unit)
    give_gradients(unit.params, seed, 100 * dist.get_rank(), unused)
    for param in unit.params:
        if param.grad is not None:
            param.grad *= 12  # divides by 2, 3 and 4: averages are exact
    memory = memory_of([unit.flat, *(param.grad for param in unit.params if param.grad is not None)])
    solution(unit)
    mark_when_gone(REDUCED, memory)
    return {
        "unit.shard.grad": unit.shard.grad,
        "unit.shard, where it is not padding": unit.shard.detach().nan_to_num(0),
        "whether each gradient is freed": [param.grad is None for param in unit.params],
        "unit.flat": "there" if unit.flat is not None else "freed",
        "elements in each parameter": [param.numel() for param in unit.params],
    }


REDUCE_GRADIENTS = Exercise(
    name="zero3.reduce_gradients",
    title="Reduce a unit's gradients to a shard",
    task="Backward has given each of `unit.params` its gradient. Put them into one flat tensor, as the parameters lie "
    "in `unit.flat`, average it over ranks with one reduce-scatter, and add this rank's part to `unit.shard.grad` "
    "(which is None, or has what earlier micro-batches left). Then free the gradients and the unit. A parameter "
    "without a gradient brings zeros, and the padding is zero.",
    stub=stubs.reduce_gradients,
    reference=reduce_gradients,
    draw=draw,
    trial=reduced_shard,
    measured=True,
    inputs_matter=False,
    rules=[
        only_calls("reduce_scatter_single", "reduce_scatter", "all_gather_single"),
        at_most("reduce_scatter_single", 1),
        lets_go(REDUCED),
    ],
    variants={"in-place": in_place, "with-a-list": with_a_list},
    mistakes=[
        Mistake(
            id="sum-for-mean",
            solution=sum_for_mean,
            told="Each gradient is the sum over ranks, and the average was asked for.",
            action="Divide the flat tensor by the world size.",
        ),
        Mistake(
            id="overwrites",
            solution=overwrites,
            told="`unit.shard.grad` is overwritten, so what earlier micro-batches left there is lost.",
            action="Add to it, where it is not None.",
        ),
        Mistake(
            id="divides-what-was-there",
            solution=divides_what_was_there,
            told="The sum is divided after it was added: what earlier micro-batches left, an average already, is "
            "divided a second time.",
            action="Divide what you reduce, before you add it.",
        ),
        Mistake(
            id="all-reduces",
            solution=all_reduces,
            told="The shard is right, and comes from an all-reduce, which sends twice as much: it also brings every "
            "rank the shards of the others.",
            action="Stop halfway: `dist.reduce_scatter_single`.",
        ),
        Mistake(
            id="without-padding",
            solution=without_padding,
            told="The flat tensor has as many elements as the parameters, and a reduce-scatter wants world size equal "
            "shards.",
            action="Pad it to the length of `unit.flat`.",
        ),
        Mistake(
            id="padding-of-the-parameters",
            solution=padding_of_the_parameters,
            told="Behind the last gradient there is what was in the tensor before. An optimizer would not mind, but "
            "the norm of the gradients, for clipping, adds up whatever is there: NaN here.",
            action="Begin with zeros, or pad with zeros.",
        ),
        Mistake(
            id="shard-of-the-whole",
            solution=shard_of_the_whole,
            told="The gradient's shard is a view of the flat tensor, which it keeps in memory whole.",
            action="Reduce into a tensor of its own: `torch.empty_like(unit.shard)`.",
        ),
        Mistake(
            id="reduces-twice",
            solution=reduces_twice,
            told="The gradients are reduced and added twice, so they count double, and twice as much is sent.",
            action="Reduce them once: one flat tensor, one reduce-scatter.",
        ),
        Mistake(
            id="something-kept",
            solution=something_kept,
            told="All is reduced and freed by name, and something that outlives your function still refers to the flat "
            "gradients: a function that closes over them, an attribute or a list.",
            action="Keep nothing but the shard. A local variable ends with the function, unless another function "
            "closes over it.",
        ),
        Mistake(
            id="parameters-kept",
            solution=parameters_kept,
            told="The unit is not freed. After backward, every unit's parameters would be whole on every rank.",
            action="Call `free(unit)`: all gradients are there, so nobody needs the parameters any more.",
        ),
        Mistake(
            id="frees-in-name",
            solution=frees_in_name,
            told="`unit.flat` is None, and the parameters are still views of that memory.",
            action="Call `free(unit)`.",
        ),
        Mistake(
            id="gradients-kept",
            solution=gradients_kept,
            told="The parameters keep their whole gradients beside the shard.",
            action="Set each `param.grad` to None once it is in the flat tensor.",
        ),
        Mistake(
            id="skips-missing",
            solution=skips_missing,
            told="Parameters without a gradient are left out, so on this rank all that follow move to the front, and "
            "meet the gradients of other parameters.",
            action="Bring zeros for them, as many as the parameter has elements while the unit is gathered: free the "
            "unit last.",
        ),
        Mistake(
            id="skips-missing-and-padding",
            solution=skips_missing_and_padding,
            told="Parameters without a gradient are left out, so the flat tensor is shorter on this rank than on "
            "others.",
            action="Bring zeros for them.",
        ),
        Mistake(
            id="own-gradients",
            solution=own_gradients,
            told="This rank's part of its own gradients: nothing came from the others.",
            action="Call `dist.reduce_scatter_single`.",
        ),
        Mistake(
            id="into-the-shard",
            solution=into_the_shard,
            told="The averaged gradient is added to the parameters themselves, and that is the optimizer's business.",
            action="Put it into `unit.shard.grad`.",
        ),
    ],
    hints=[
        "Which slice of all gradients does this rank's optimizer need, for the slice of parameters that it keeps?",
        "It is shard_params once more, with gradients in the place of values, and a reduce-scatter in the place of "
        "cutting: summing and cutting in one. Where the padding lies must agree, too.",
        "`torch.cat`, `F.pad`, `dist.reduce_scatter_single(shard, flat)`, `unit.shard.grad`, `param.grad = None`, "
        "`free(unit)`. In `unit.flat` you find how long the flat tensor has to be.",
        "```python\ngrads = [... if param.grad is None else param.grad for ...]\n"
        "flat_grad = F.pad(torch.cat([...]), ...) / ...\ngrad_shard = torch.empty_like(unit.shard)\n...\n"
        "unit.shard.grad = ...  # or the sum, if there is one\n...  # free\n```",
    ],
    explanation="An all-gather brought the parameters, and a reduce-scatter takes the gradients away: each is the "
    "other backwards. What was summed lies just where the shard of the parameters lies, so the optimizer needs "
    "nothing but `unit.shard` and `unit.shard.grad`. Divided is before the sum, which keeps the numbers small where "
    "they are summed in 16 bits. When the function returns, the rank has 1/N of this unit's parameters and of its "
    "gradients.",
)
