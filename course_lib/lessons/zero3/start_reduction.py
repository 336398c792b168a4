"""Start to average a unit's gradients into this rank's shard, free everything that is whole, and finish later."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ...exercises import Case, Exercise, dtype_name, lets_go, whole_numbers
from ..data_parallel.data import add_digits, draw_unused, give_gradients, last_rank_comes_later
from .data import (
    DTYPES,
    Holder,
    Shapes,
    draw_shapes,
    draw_world_size,
    mark_when_gone,
    memory_of,
    one_call_in_time,
    total_numel,
)
from .start_gather import gather
from .unit import Unit, free, poisoned_unit

REDUCED = "once the reduction is finished"
SHARD_BYTES = 270  # in the first case, `finish` may keep the shard in which the sum arrived; all shards take more


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
    solution: Callable[[Unit], Callable[[], None]],
    shapes: Shapes,
    dtype: torch.dtype,
    seed: int,
    unused: list[int],
    twice: bool,
) -> dict[str, Any]:
    unit = poisoned_unit(Holder(shapes, dtype, seed))
    if twice:
        unit.shard.grad = whole_numbers(unit.shard.numel(), seed=seed + 7, rank=dist.get_rank(), dtype=dtype)
    gather(unit)
    give_gradients(unit.params, seed, 100 * dist.get_rank(), unused)
    add_digits(unit.params, dist.get_rank(), dist.get_world_size())
    for param in unit.params:
        if param.grad is not None:
            param.grad *= 12  # 2, 3 and 4 divide it, so averages are exact
    memory = memory_of([unit.flat, *(param.grad for param in unit.params if param.grad is not None)])
    finishes = []
    last_rank_comes_later(lambda: finishes.append(solution(unit)))
    seen = {
        "whether each gradient is freed once the reduction is started": [param.grad is None for param in unit.params],
        "unit.flat": "present" if unit.flat is not None else "freed",
        "elements in each parameter": [param.numel() for param in unit.params],
    }
    finishes[0]()
    mark_when_gone(REDUCED, memory)
    return seen | {
        "unit.shard.grad": unit.shard.grad,
        "unit.shard, without its padding": unit.shard.detach().nan_to_num(0),
    }


exercise = Exercise("zero3.start_reduction", title="Start to reduce a unit's gradients", draw=draw, trial=reduced_shard,
    measured=True, asynchronous=True, inputs_matter=False,
    rules=[one_call_in_time("reduce_scatter"), lets_go(REDUCED, slack=SHARD_BYTES)], task="""
    Backward has computed the gradient of each of `unit.params`. Join the gradients into one flat tensor, in the layout
    of `unit.flat`, and start one reduce-scatter of it, without waiting. Free the gradients and the unit at once,
    because nothing needs them any more. Return a function that waits, and then adds this rank's shard of the average to
    `unit.shard.grad`, which is None or contains the gradient of earlier micro-batches. A parameter without a gradient
    counts as zeros, and the padding is zero. After that call nothing whole is in memory.""", hints="""
    Each rank's optimizer updates one shard of the parameters. Which slice of the gradients does it need, and when?

    Do the same as in shard_params, with gradients instead of values. A reduce-scatter sums and cuts in one call. The
    padding must be in the same place too. As in start_gather, an inner function does what comes after the wait.

    `torch.cat`, `F.pad`, `dist.reduce_scatter_single(shard, flat, async_op=True)`, `handle.wait()`,
    `unit.shard.grad`, `param.grad = None`, `free(unit)`. The flat tensor must be as long as `unit.flat`.

    ```python
    grads = [... if param.grad is None else param.grad for ...]
    flat_grad = F.pad(torch.cat([...]), ...) / ...
    grad_shard = torch.empty_like(unit.shard)
    handle = ...
    ...  # free the gradients and the unit

    def finish():
        ...
        unit.shard.grad = ...  # or the sum, if there is one

    return finish
    ```
    """, explanation="""
    The all-gather fetched the parameters, and the reduce-scatter sends the gradients back. Each shard of the average is
    in the same place as the shard of the parameters, so the optimizer needs only `unit.shard` and `unit.shard.grad`.
    The gradients can be freed before the wait, because the flat tensor is a copy of them, and the collective keeps this
    copy until it has been sent. `finish` does not refer to it, so it is freed with the wait. Each rank divides before
    the sum: this keeps the numbers small if they are summed in 16 bits. When `finish` returns, the rank holds 1/N of
    this unit's parameters and of its gradients.""")


@exercise
def start_reduction(unit: Unit) -> Callable[[], None]:
    """Start to reduce-scatter the gradients of `unit`; free them and the unit; return a function that finishes.

    That function waits, and adds this rank's shard of the averaged gradients to `unit.shard.grad`. A
    parameter without a gradient counts as zeros. The padding is zero.
    """
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in unit.params]
    flat_grad = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
    flat_grad = F.pad(flat_grad, (0, unit.flat.numel() - flat_grad.numel()))
    grad_shard = torch.empty_like(unit.shard)
    handle = dist.reduce_scatter_single(grad_shard, flat_grad, async_op=True)
    for param in unit.params:
        param.grad = None
    free(unit)

    def finish() -> None:
        handle.wait()
        unit.shard.grad = grad_shard if unit.shard.grad is None else unit.shard.grad + grad_shard

    return finish


STARTS = "dist.reduce_scatter_single(grad_shard, flat_grad, async_op=True)"
ADDS = "unit.shard.grad = grad_shard if unit.shard.grad is None else unit.shard.grad + grad_shard"

exercise.edit("waits-at-once", {", async_op=True": "", "handle.wait()\n": ""}, """
    Without `async_op=True`, the reduce-scatter returns only when all ranks have reached it and the bytes have arrived,
    so backward stands still meanwhile. In this check it waits forever, because the last rank starts only after all
    others have returned. Next: start the call without waiting, and wait for its handle in the function that you
    return.
    """)

exercise.edit("starts-in-finish", {f"handle = {STARTS}\n": "", "handle.wait()": STARTS.replace(", async_op=True", "")},
    """
    Your reduce-scatter starts only when `finish` is called, so no bytes move while the next unit computes.
    Next: start it before you return, without waiting; only the wait belongs in `finish`.""")

exercise.edit("never-waits", {"torch.empty_like": "torch.zeros_like", f"handle = {STARTS}\n":
    f"{STARTS}\nbefore = grad_shard.clone()  # the same on every run\n", f"handle.wait()\n{ADDS}":
    ADDS.replace("grad_shard if", "before if").replace("+ grad_shard", "+ before")}, """
    You use a tensor of the reduce-scatter before it has ended: with `async_op=True` the call returns at once, and the
    numbers travel later. Next: keep the handle, and call its `wait()` first in the function that you return.""")

exercise.edit("returns-nothing", {"\nreturn finish": ""}, """
    Your function returns None. The caller needs a function that finishes the reduction.
    Next: return the function itself, without calling it.""")

exercise.edit("overwrites", {" if unit.shard.grad is None else unit.shard.grad + grad_shard": ""}, """
    `unit.shard.grad` has only the new gradient: that of earlier micro-batches is gone.
    Next: which lines assign to `unit.shard.grad`? If it is not None, add to it.""")

exercise.edit("divides-what-was-there", {" / dist.get_world_size()": "", ADDS:
    f"{ADDS}\nunit.shard.grad /= dist.get_world_size()"}, """
    You divide after you have added. The gradient of earlier micro-batches is an average already, and you divide it
    a second time. Next: divide the gradients that you reduce, before you add them.""")

exercise.edit("mean-of-backwards", {ADDS: ADDS.replace("unit.shard.grad + grad_shard",
    "(unit.shard.grad + grad_shard) / 2")}, """
    You divide by 2 when you add the new average to the earlier one. The averages of several micro-batches are added
    up. Next: leave out this division.""")

exercise.edit("sum-for-mean", {" / dist.get_world_size()": ""}, """
    You add the sum over ranks, and the task asks for the average.
    Next: which number turns the sum into the average?""")

OWN = """
    You add this rank's own gradients. The gradients of the other ranks never arrive.
    Next: which call gives each rank the sum of its own shard over all ranks?"""
NO_CALL = {f"grad_shard = torch.empty_like(unit.shard)\nhandle = {STARTS}":
    "grad_shard = flat_grad.chunk(dist.get_world_size())[dist.get_rank()].clone()", "handle.wait()\n": ""}

exercise.edit("never-reduces", NO_CALL, OWN)

exercise.edit("never-reduces-nor-divides", {**NO_CALL, " / dist.get_world_size()": ""}, OWN)

exercise.edit("all-reduces", {f"grad_shard = torch.empty_like(unit.shard)\nhandle = {STARTS}":
    "handle = dist.all_reduce(flat_grad, async_op=True)", f"handle.wait()\n{ADDS}":
    "handle.wait()\ngrad_shard = flat_grad.chunk(dist.get_world_size())[dist.get_rank()].clone()\n" + ADDS}, """
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

exercise.edit("kept-by-the-closure", {"handle.wait()\n": "handle.wait()\nunit.sent = flat_grad\n"}, """
    Memory of the size of the whole gradients is still held when the reduction is finished: something still refers to
    the gradients, or to the flat tensor. Next: store neither, and use neither in the function that you return. The
    collective keeps what it sends as long as it is being sent.""")

exercise.edit("parameters-kept", {"\nfree(unit)": ""}, """
    The unit is still whole when your function returns, and stays so at least until the reduction is finished.
    Next: free the unit before you return: all gradients have arrived, so the parameters are not needed any more.""")

exercise.edit("gradients-kept", {"for param in unit.params:\nparam.grad = None\n": ""}, """
    The parameters still have their whole gradients when your function returns.
    Next: set each `param.grad` to None once the flat tensor contains it.""")

exercise.edit("skips-missing", {
    "[torch.zeros_like(param) if param.grad is None else param.grad for param in unit.params]":
    "[param.grad for param in unit.params if param.grad is not None]"}, """
    You leave out parameters without a gradient. On this rank, all later gradients move to the front, and are added to
    the gradients of different parameters. Next: use zeros for them, as many as the parameter has elements.""")

exercise.edit("only-waits", {f"\n{ADDS}": ""}, """
    The function that you return waits, and leaves `unit.shard.grad` as it was.
    Next: what should happen with the shard of the average, after the wait?""")

exercise.variant_edit("with-a-list", {"dist.reduce_scatter_single(grad_shard, flat_grad,":
    "dist.reduce_scatter(grad_shard, list(flat_grad.split(unit.shard.numel())),"})

exercise.variant_edit("averages-in-a-new-tensor", {" / dist.get_world_size()": "", ADDS:
    "average = grad_shard / dist.get_world_size()\n" + ADDS.replace("grad_shard", "average")})

exercise.variant_edit("divides-afterwards", {" / dist.get_world_size()": "", "handle.wait()\n":
    "handle.wait()\ngrad_shard.div_(dist.get_world_size())\n"})
