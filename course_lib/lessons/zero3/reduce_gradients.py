"""Average a unit's gradients into this rank's shard, and free everything that is whole."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ...exercises import Case, Exercise, at_most, dtype_name, lets_go, only_calls, whole_numbers
from ..data_parallel.data import draw_unused, give_gradients
from .data import DTYPES, Holder, Shapes, draw_shapes, draw_world_size, mark_when_gone, memory_of, total_numel
from .start_gather import gather
from .unit import Unit, free, poisoned_unit

REDUCED = "after the gradients are reduced"


def draw(rng: random.Random, number: int) -> Case:
    world_size, dtype, seed = draw_world_size(rng, number), DTYPES[number % 2], rng.getrandbits(32)
    shapes, twice = draw_shapes(rng, world_size), number > 0
    unused = draw_unused(rng, len(shapes), world_size) if number > 0 else [[] for _ in range(world_size)]
    return Case(
        world_size=world_size,
        args=lambda rank: (shapes, dtype, seed, unused[rank], twice),
        what=f"{total_numel(shapes)} elements, "
        f"{dtype_name(dtype)}{', the second of two micro-batches' * twice}"
        f"{', a parameter without a gradient on one rank' * any(unused)}",
    )


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
            param.grad *= 12  # 2, 3 and 4 divide it, so averages are exact
    memory = memory_of([unit.flat, *(param.grad for param in unit.params if param.grad is not None)])
    solution(unit)
    mark_when_gone(REDUCED, memory)
    return {
        "unit.shard.grad": unit.shard.grad,
        "unit.shard, without its padding": unit.shard.detach().nan_to_num(0),
        "whether each gradient is freed": [param.grad is None for param in unit.params],
        "unit.flat": "present" if unit.flat is not None else "freed",
        "elements in each parameter": [param.numel() for param in unit.params],
    }


RULES = [
    only_calls("reduce_scatter"),
    at_most("reduce_scatter", 1),
    lets_go(REDUCED),
]

exercise = Exercise("zero3.reduce_gradients", title="Reduce a unit's gradients to a shard", draw=draw,
    trial=reduced_shard, measured=True, inputs_matter=False, rules=RULES, task="""
    Backward has computed the gradient of each of `unit.params`. Join the gradients into one flat tensor, in the layout
    of `unit.flat`. Average it over ranks with one reduce-scatter, and add this rank's part to `unit.shard.grad`, which
    is None or contains the gradient of earlier micro-batches. Then free the gradients and the unit. A parameter without
    a gradient counts as zeros, and the padding is zero.""", hints="""
    Each rank's optimizer updates one shard of the parameters. Which slice of the gradients does it need?

    Do the same as in shard_params, with gradients instead of values. A reduce-scatter sums and cuts in one call. The
    padding must be in the same place too.

    `torch.cat`, `F.pad`, `dist.reduce_scatter_single(shard, flat)`, `unit.shard.grad`, `param.grad = None`,
    `free(unit)`. The flat tensor must be as long as `unit.flat`.

    ```python
    grads = [... if param.grad is None else param.grad for ...]
    flat_grad = F.pad(torch.cat([...]), ...) / ...
    grad_shard = torch.empty_like(unit.shard)
    ...
    unit.shard.grad = ...  # or the sum, if there is one
    ...  # free
    ```
    """, explanation="""
    The all-gather fetched the parameters, and the reduce-scatter sends the gradients back. Each shard of the average is
    in the same place as the shard of the parameters, so the optimizer needs only `unit.shard` and `unit.shard.grad`.
    Each rank divides before the sum: this keeps the numbers small if they are summed in 16 bits. When the function
    returns, the rank holds 1/N of this unit's parameters and of its gradients.""")


@exercise
def reduce_gradients(unit: Unit) -> None:
    """Add this rank's shard of the averaged gradients to `unit.shard.grad`, then free the unit.

    Free the gradients too. A parameter without a gradient counts as zeros. The padding
    is zero.
    """
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in unit.params]
    flat_grad = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
    flat_grad = F.pad(flat_grad, (0, unit.flat.numel() - flat_grad.numel()))
    grad_shard = torch.empty_like(unit.shard)
    dist.reduce_scatter_single(grad_shard, flat_grad)
    unit.shard.grad = grad_shard if unit.shard.grad is None else unit.shard.grad + grad_shard
    for param in unit.params:
        param.grad = None
    free(unit)


exercise.edit("overwrites", {" if unit.shard.grad is None else unit.shard.grad + grad_shard": ""}, """
    You overwrite `unit.shard.grad`, so the gradient of earlier micro-batches is lost.
    Next: add to it if it is not None.""")

exercise.edit("divides-what-was-there", {" / dist.get_world_size()": "", "for param in unit.params:":
    "unit.shard.grad /= dist.get_world_size()\nfor param in unit.params:"}, """
    You divide after you have added. The gradient of earlier micro-batches is an average already, and you divide it
    a second time. Next: divide the gradients that you reduce, before you add them.""")

exercise.edit("all-reduces", {
    "grad_shard = torch.empty_like(unit.shard)\ndist.reduce_scatter_single(grad_shard, flat_grad)":
    "dist.all_reduce(flat_grad)\ngrad_shard = flat_grad.chunk(dist.get_world_size())[dist.get_rank()].clone()"}, """
    The shard is right, but you use an all-reduce. It sends twice as much, because it also gives every rank the shards
    of all others. Next: use `dist.reduce_scatter_single`.""")

exercise.edit("without-padding", {"flat_grad = F.pad(flat_grad, (0, unit.flat.numel() - flat_grad.numel()))\n": ""}, """
    Your flat tensor has only the elements of the parameters. A reduce-scatter needs world size shards of equal size.
    Next: pad the flat tensor to the length of `unit.flat`.""")

exercise.edit("padding-of-the-parameters", {"F.pad(flat_grad, (0, unit.flat.numel() - flat_grad.numel()))":
    "torch.cat([flat_grad, unit.flat[flat_grad.numel() :]])"}, """
    Behind the last gradient, your tensor has values that are not zero. An optimizer would not notice. But the norm of
    the gradients, which clipping needs, includes them, and the parameters' padding is NaN here. Next: pad with zeros.
    """)

exercise.edit("shard-of-the-whole", {"unit.shard.grad + grad_shard": "grad_shard.add_(unit.shard.grad)",
    "unit.shard.grad = grad_shard": "mine = flat_grad.chunk(dist.get_world_size())[dist.get_rank()]\n"
    "grad_shard = mine.copy_(grad_shard)\nunit.shard.grad = grad_shard"}, """
    Memory of the size of the whole gradients is still held when your function returns. If `unit.shard.grad` is a view
    of the flat tensor, it keeps all of it. Next: reduce into a tensor of its own, `torch.empty_like(unit.shard)`, and
    store the flat tensor nowhere.""")

exercise.edit("parameters-kept", {"\nfree(unit)": ""}, """
    You do not free the unit. After backward, all parameters of all units would be whole on every rank.
    Next: call `free(unit)`; all gradients have arrived, so the parameters are not needed any more.""")

exercise.edit("gradients-kept", {"for param in unit.params:\nparam.grad = None\n": ""}, """
    The parameters keep their whole gradients next to the shard.
    Next: set each `param.grad` to None once the flat tensor contains it.""")

exercise.edit("skips-missing", {
    "[torch.zeros_like(param) if param.grad is None else param.grad for param in unit.params]":
    "[param.grad for param in unit.params if param.grad is not None]"}, """
    You leave out parameters without a gradient. On this rank, all later gradients move to the front, and are added to
    the gradients of different parameters. Next: use zeros for them, as many as the parameter has elements.""")

exercise.variant_edit("with-a-list", {"dist.reduce_scatter_single(grad_shard, flat_grad)":
    "dist.reduce_scatter(grad_shard, list(flat_grad.split(unit.shard.numel())))"})

exercise.variant_edit("divides-afterwards", {" / dist.get_world_size()": "",
    "(grad_shard, flat_grad)": "(grad_shard, flat_grad)\ngrad_shard /= dist.get_world_size()"})
