"""One bucket's gradients: sent without waiting, averaged, added to the shard, and freed."""

# (a variable that holds a tensor holds None once the tensor is freed)

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...exercises import Case, Exercise, Solution, draw_world_size, dtype_name, same_calls, whole_numbers
from ...meter import mark
from ..data_parallel.data import hear_from_all_others, starts_in_time
from .data import DTYPES, Bucket, draw_shapes, grad_shard, keeps_no_more, parameters, poisoned_bucket


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed, dtype = draw_world_size(rng, number), rng.getrandbits(32), DTYPES[number % 2]
    shapes, backwards = draw_shapes(rng, world_size), 1 if number == 0 else 3
    # In the last backward of some cases a rank has no gradient at all.
    silent = rng.randrange(world_size) if number in (1, 2, 5) else None

    def args(rank: int) -> tuple[Bucket, list[list[Tensor]]]:
        bucket = poisoned_bucket(parameters(shapes, dtype, seed))
        # In float64 they are no numbers of float32. Over ranks the large parts add up to 0.
        large = 2**26 * ((rank == 0) - (rank == world_size - 1)) * (dtype == torch.float64)
        backward_grads = [
            [large + whole_numbers(*shape, seed=seed + 10 * backward, rank=100 * rank, dtype=dtype) for shape in shapes]
            for backward in range(backwards)
        ]
        if rank == silent:
            backward_grads[-1] = []
        return bucket, backward_grads

    numel = sum(torch.Size(shape).numel() for shape in shapes)
    what = f"a bucket of {numel} elements, {dtype_name(dtype)}"
    what += f", {backwards} backward passes" * (backwards > 1)
    what += f", no gradient on rank {silent} in the last backward" * (silent is not None)
    return Case(world_size=world_size, args=args, what=what)


def shards_of_each_backward(
    solution: Solution, bucket: Bucket, backward_grads: Sequence[Sequence[Tensor]]
) -> list[dict[str, Any]]:
    """Return the bucket's tensors of each backward. The last rank starts after `solution` returned on all others."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    shards = []
    for backward, grads in enumerate(backward_grads, start=1):
        for number, grad in enumerate(grads):
            bucket.add(number, grad)
        if rank == last:
            hear_from_all_others()
        finish = solution(bucket)
        if rank < last:
            dist.send(torch.zeros(1), dst=last)
        flat_grad = None if bucket.flat_grad is None else bucket.flat_grad.clone()
        finish()
        mark(f"After backward {backward}, with the reduction finished")
        params = [param.detach().clone() for param in bucket.params]  # as they were
        when = {"flat_grad when started": flat_grad, "shard when finished": grad_shard(bucket)}
        trainable = [param.requires_grad for param in bucket.params]
        shards.append({**when, "parameters when finished": params, "the parameters' requires_grad": trainable})
    return shards


exercise = Exercise("zero2.start_reduction", title="Reduce a bucket", draw=draw, trial=shards_of_each_backward,
    asynchronous=True, inputs_matter=False, measured=True, rules=[same_calls(), starts_in_time(
        moments="when the function returned (- if the trial has no message there)",
        action="Call `dist.reduce_scatter_single(..., async_op=True)` before you return the function that finishes.",
        op="reduce_scatter",
    ), keeps_no_more], task="""
    Start a reduce-scatter of `bucket.flat_grad`, with `dist.reduce_scatter_single` and `async_op=True`, and do not wait
    for it. Set `bucket.flat_grad` to None, so that the next backward begins with an empty bucket. Where it is None
    already, this rank sends zeros. Return a function that waits, and then **adds** the average over ranks to
    `bucket.param_shard.grad`, which is None before the first backward of a step. After that call, no whole gradient is
    in memory, even if a variable still refers to the function.""", hints="""
    Which tensor has N times as many elements as this rank needs in the end? When is it last used?

    There are two moments: the start, in backward, and the finish, later. Variables of the outer function hold what both
    need. The averages of several backward passes are added up, in the shard.

    `dist.reduce_scatter_single(shard, flat_grad, async_op=True)` returns a handle with `wait()`. Make the shard with
    `torch.empty_like(bucket.param_shard)`.

    ```python
    flat_grad = ...  # or zeros
    bucket.flat_grad = None
    grad_shard = torch.empty_like(bucket.param_shard)
    handle = dist.reduce_scatter_single(..., async_op=True)

    def finish():
        handle.wait()
        average = ...
        ...  # store it, or add it

    return finish
    ```
    """, explanation="""
    The reduce-scatter leaves each rank with the sum of its own shard, and its optimizer needs nothing else.
    `nonlocal flat_grad; flat_grad = None` shows the line at which the whole gradient is freed. It comes after the wait,
    because the gradient is being sent until then. Each micro-batch adds its average, 1/N of the gradient. That is why
    ZeRO-2 cannot put off communication to the last micro-batch, as data parallel does: it would have to keep the whole
    gradients until then.""")


@exercise
def start_reduction(bucket: Bucket) -> Callable[[], None]:
    """Start to reduce-scatter `bucket.flat_grad`, without waiting, and set it to None.

    If it is None already, this rank has no gradient, and sends zeros. Return a function that
    waits and then adds the average to `bucket.param_shard.grad`, which may be None.
    """
    flat_grad = bucket.flat_grad if bucket.flat_grad is not None else torch.zeros_like(bucket.flat_param)
    bucket.flat_grad = None
    grad_shard = torch.empty_like(bucket.param_shard)
    handle = dist.reduce_scatter_single(grad_shard, flat_grad, async_op=True)

    def finish() -> None:
        nonlocal flat_grad
        handle.wait()
        flat_grad = None  # it has been sent: nothing whole is left
        average = grad_shard / dist.get_world_size()
        earlier = bucket.param_shard.grad
        bucket.param_shard.grad = average if earlier is None else earlier + average

    return finish


FREE = "flat_grad = None  # it has been sent: nothing whole is left\n"
AVERAGE = "average = grad_shard / dist.get_world_size()"

exercise.edit("overwrites", {"average if earlier is None else earlier + average": "average"}, """
    Your average replaces the average of earlier backward passes. With several micro-batches, only the last one counts.
    Next: add it to `bucket.param_shard.grad` where that is not None.""")

exercise.edit("divides-what-was-there", {AVERAGE: "average = grad_shard",
    "average if earlier is None else earlier + average":
    "(average if earlier is None else earlier + average) / dist.get_world_size()"}, """
    You add the sum and divide the result. So you divide the averages of earlier backward passes again, and the older a
    micro-batch is, the less it counts. Next: divide only the new sum, before you add it.""")

exercise.edit("mean-of-backwards", {"earlier + average": "(earlier + average) / 2"}, """
    You divide by 2 when you add the new average to the earlier one. The averages of several backward passes are added
    up. Next: leave out this division.""")

exercise.edit("sum-for-mean", {AVERAGE: "average = grad_shard"}, """
    You add the sum over ranks, and the task asks for the average.
    Next: which number turns the sum into the average?""")

OWN = """
    You add this rank's own gradient. The gradients of the other ranks never arrive.
    Next: which call gives each rank the sum of its own shard over all ranks?"""
REDUCE = """grad_shard = torch.empty_like(bucket.param_shard)
handle = dist.reduce_scatter_single(grad_shard, flat_grad, async_op=True)"""
NO_CALL = {REDUCE: "grad_shard = flat_grad.chunk(dist.get_world_size())[dist.get_rank()].clone()",
    "handle.wait()\n": ""}

exercise.edit("never-reduces", NO_CALL, OWN)

exercise.edit("never-reduces-nor-divides", {**NO_CALL, AVERAGE: "average = grad_shard"}, OWN)

exercise.edit("waits-at-once", {"def finish": "handle.wait()\n\ndef finish", "nonlocal flat_grad\nhandle.wait()":
    "nonlocal flat_grad"}, """
    You wait before you return. Backward would stop there until every rank has reached this bucket and all its bytes
    have arrived. Next: call `handle.wait()` in the function that you return.""")

exercise.edit("never-waits", {"torch.empty_like(bucket.param_shard)": "torch.zeros_like(bucket.param_shard)",
    "flat_grad, async_op=True)": "flat_grad, async_op=True)\nbefore = grad_shard.clone()  # the same on every run",
    "average = grad_shard /": "average = before /"}, """
    You use a tensor of the reduce-scatter before it has ended: with `async_op=True` the call returns at once, and the
    numbers travel later. Next: call `handle.wait()` before you read the shard, or write to what is sent.""")

exercise.edit("keeps-what-was-sent", {"bucket.flat_grad = None\n": ""}, """
    The bucket still has its `flat_grad` afterwards. The whole gradient stays in memory, and the next backward adds to
    it, so it is sent a second time. Next: let the bucket drop its gradient when you start the reduction.""")

exercise.edit("dropped-in-the-end", {"bucket.flat_grad = None\n": "",
    FREE: "flat_grad = bucket.flat_grad = None\n"}, """
    The bucket keeps its `flat_grad` until the reduction is finished. A gradient that arrives before then is added to
    the tensor that is being sent, and lost. Next: let the bucket drop its gradient when you start the reduction.""")

exercise.edit("kept-by-the-closure", {"nonlocal flat_grad\n": "", FREE: "assert flat_grad is not None\n"}, """
    Something still refers to the whole gradient after it has been sent, such as a variable of the function that you
    return, or an attribute. As long as it does, the gradient stays in memory.
    Next: let the function that you return drop its variable after the wait, and store the gradient nowhere else.""")

exercise.edit("all-reduce-and-cut", {"grad_shard = torch.empty_like(bucket.param_shard)\n": "",
    "dist.reduce_scatter_single(grad_shard, flat_grad, async_op=True)": "dist.all_reduce(flat_grad, async_op=True)",
    FREE: "", AVERAGE:
    "average = (flat_grad / dist.get_world_size()).chunk(dist.get_world_size())[dist.get_rank()]"}, """
    The numbers are right, but they come from an all-reduce: every rank gets the whole sum, for twice the bytes, and
    keeps one part of it. The part is a view, so the rest stays in memory, too.
    Next: use `dist.reduce_scatter_single`: each rank gets only its shard.""")

exercise.edit("silent-ranks-stay-away", {"flat_grad = bucket.flat_grad if":
    "if bucket.flat_grad is None:\n    return lambda: None\nflat_grad = bucket.flat_grad if"}, """
    A rank without a gradient does not call the reduce-scatter, and the other ranks wait for it.
    Next: let that rank send zeros, as many as the others send gradients.""")

exercise.variant_edit("frees-by-itself", {"nonlocal flat_grad\n": "", FREE: ""})


@exercise.variant
def divides_before(bucket: Bucket) -> Callable[[], None]:
    world_size = dist.get_world_size()
    if bucket.flat_grad is None:
        bucket.flat_grad = bucket.flat_param.new_zeros(bucket.flat_param.shape)
    sending, bucket.flat_grad = bucket.flat_grad / world_size, None
    received = sending.new_empty(len(sending) // world_size)
    work = dist.reduce_scatter_single(received, sending, async_op=True)

    def finish() -> None:
        work.wait()
        if bucket.param_shard.grad is None:
            bucket.param_shard.grad = torch.zeros_like(bucket.param_shard)
        bucket.param_shard.grad += received

    return finish
