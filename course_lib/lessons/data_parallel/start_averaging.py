"""The average of a bucket's gradients, in one all-reduce that runs in the background."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...exercises import Case, Exercise, Solution, draw_world_size, same_calls
from .data import DTYPES, add_digits, draw_shapes, give_gradients, last_rank_comes_later, parameters, starts_in_time

Bucket = list[nn.Parameter]


def draw(rng: random.Random, number: int) -> Case:
    world_size, dtype, seed = draw_world_size(rng, number), DTYPES[number // 2 % 2], rng.getrandbits(32)
    counts = [rng.randint(2, 3) for _ in range(1 + (number > 0))]
    shapes = draw_shapes(rng, sum(counts))
    shapes[0] = (2, 3)
    unused: list[list[int]] = [[] for _ in range(world_size)]
    if number > 0 and world_size > 1:  # only on the last rank, or on all except the last: see gradients_afterwards
        lacking = slice(-1, None) if rng.random() < 0.5 else slice(0, -1)
        first = range(counts[0] if number == 2 else 1)  # in float64, without any gradient in a bucket
        unused[lacking] = [[*first, len(shapes) - 1]] * len(unused[lacking])

    def args(rank: int) -> tuple[list[Bucket]]:
        params = parameters(shapes, dtype, seed)
        give_gradients(params, seed, rank, unused[rank])
        add_digits(params, rank, world_size)
        return ([params[: counts[0]], params[counts[0] :]][: len(counts)],)

    what = f"{len(counts)} bucket{'s' * (len(counts) > 1)}, {dtype}"
    return Case(world_size=world_size, args=args, what=what + ", some gradients missing" * any(unused))


def gradients_afterwards(solution: Solution, buckets: list[Bucket]) -> Any:
    """Return the gradients after every bucket is finished.

    The last rank starts after all other ranks have started, so a `solution` that waits deadlocks. If ranks disagree
    about a size, the last rank's first call shows it, the same on every run.
    """
    finishes: list[Any] = []
    last_rank_comes_later(lambda: finishes.extend(map(solution, buckets)))
    for finish in finishes:
        finish()
    return [[param.grad for param in bucket] for bucket in buckets]


exercise = Exercise("data_parallel.start_averaging", title="One all-reduce for a bucket", draw=draw,
    trial=gradients_afterwards, asynchronous=True, inputs_matter=False, rules=[same_calls(), starts_in_time(
        moments="when the function returned (- if the trial has no message there)",
        action="Call `dist.all_reduce(flat, async_op=True)` before you return the function that finishes.",
    )], task="""
    Average the gradients of the parameters in `bucket` over ranks, with one all-reduce for all of them: join them in
    one flat tensor. Do not wait for the all-reduce. Return a function that waits for it, and then gives each parameter
    its averaged gradient. For a parameter without a gradient, use zeros.""", hints="""
    A call costs time, even with a short tensor. How can ten small gradients travel in one call?

    `torch.cat` of the flattened gradients is one tensor with all of them, and `split` cuts it into pieces again. The
    all-reduce runs in between. A function that is defined inside your function can use its variables later.

    `grad.flatten()`, `torch.cat`, `dist.all_reduce(flat, async_op=True)`, `handle.wait()`, `flat.split([numel, ...])`,
    `piece.view_as(param)`.

    ```python
    grads = [torch.zeros_like(param) if param.grad is None else ... for param in bucket]
    flat = torch.cat([...]) / ...
    handle = ...

    def finish():
        handle.wait()
        for param, piece in zip(bucket, flat.split([...])):
            param.grad = ...

    return finish
    ```
    """, explanation="""
    The function starts the all-reduce and returns at once. The second half of the work is in a function that remembers
    `flat`, `handle` and `bucket`. Until `handle.wait()` returns, `flat` belongs to the all-reduce: if you read it, you
    may get unfinished sums, and if you write to it, you may spoil them. Each call has a latency, however short its
    tensor, so one call for a bucket is faster than one for each parameter. The price is a copy of the gradients.""")


@exercise
def start_averaging(bucket: list[nn.Parameter]) -> Callable[[], None]:
    """Start to average the gradients of `bucket` over ranks, in one all-reduce, without waiting for it.

    Return a function that waits for it and then puts the averages into the gradients.
    If a parameter has no gradient on this rank, use zeros for it; it gets the average, too.
    """
    grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in bucket]
    flat = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
    handle = dist.all_reduce(flat, async_op=True)

    def finish() -> None:
        handle.wait()
        pieces = flat.split([param.numel() for param in bucket])
        for param, piece in zip(bucket, pieces, strict=True):
            param.grad = piece.view_as(param)

    return finish


exercise.edit("waits-at-once", {"async_op=True)\n": "async_op=True)\nhandle.wait()\n",
    "handle.wait()\npieces": "pieces"}, """
    Your function waits for the all-reduce before it returns, so backward would wait, too. In this check it deadlocks,
    because the last rank starts only after all other ranks have returned.
    Next: start the call without waiting, and wait for its handle in the function that you return.""")

exercise.edit("never-waits", {"handle.wait()\n": ""}, """
    The function that finishes does not wait, so it reads the flat tensor before the sum is complete. With
    `async_op=True`, the call returns a handle to wait for.
    Next: keep the handle, and call its `wait()` first in the function that you return.""")

exercise.edit("starts-when-finishing", {"handle = dist.all_reduce(flat, async_op=True)\n": "",
    "handle.wait()": "dist.all_reduce(flat)"}, """
    You call the all-reduce only when the bucket is finished. Nothing travels between the two calls, while backward
    computes. Next: start the call before you return the function that finishes.""")

exercise.edit("returns-nothing", {"\nreturn finish": ""}, """
    Your function returns None. The caller needs a function that finishes the bucket.
    Next: return the function itself, without calling it.""")

exercise.edit("skips-where-there-is-none", {"grads = [torch.zeros_like(param) if param.grad is None else param.grad "
    "for param in bucket]": "bucket = [param for param in bucket if param.grad is not None]\n"
    "grads = [param.grad for param in bucket]"}, """
    You leave parameters without a gradient out of the flat tensor, so its size on this rank differs from its size on
    the other ranks. Next: let this rank contribute zeros for these parameters.""")

exercise.edit("zeros-in-float32", {"torch.zeros_like(param) if": "torch.zeros(param.shape) if"}, """
    Your zeros are in float32, torch's default, whatever the parameters' dtype is. On a rank that has no gradient in
    this bucket, the flat tensor is in float32 as a whole, and on the other ranks it is not.
    Next: make the zeros in the dtype of the parameter.""")

exercise.edit("leaves-none", {"param.grad = piece.view_as(param)":
    "if param.grad is not None:\n    param.grad.copy_(piece.view_as(param))"}, """
    A parameter that had no gradient on this rank keeps `grad = None`, although the ranks averaged one for it. The
    optimizer would skip the parameter on this rank only. Next: assign the average to `param.grad` of every parameter.
    """)

exercise.edit("all-from-the-front", {"piece.view_as(param)": "flat[: param.numel()].view_as(param)"}, """
    Every parameter gets a piece from the front of the flat tensor, where the first gradient is.
    Next: begin each piece where the previous one ends; a tensor can split itself into pieces of given sizes.""")


@exercise.mistake
def one_call_for_each(bucket: list[nn.Parameter]) -> Callable[[], None]:
    """The averages are right, but you make one all-reduce for each parameter. A bucket exists to pay for one call
    instead of many. Next: join the gradients with `torch.cat`, and reduce the flat tensor."""
    finishes = [start_averaging([param]) for param in bucket]

    def finish() -> None:
        for finish_one in finishes:
            finish_one()

    return finish


exercise.variant_edit("into-the-gradients", {" / dist.get_world_size()": "", "param.grad = piece.view_as(param)":
    "param.grad = torch.zeros_like(param) if param.grad is None else param.grad\n"
    "param.grad.copy_(piece.view_as(param)).div_(dist.get_world_size())"})

exercise.variant_edit("joined-at-once", {"[grad.flatten() for grad in grads]":
    "[(p.grad if p.grad is not None else 0 * p.detach()).reshape(-1) for p in bucket]"})
