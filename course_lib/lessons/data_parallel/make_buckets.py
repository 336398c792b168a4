"""Parameters cut into buckets, by bytes, in the order in which backward gives gradients."""

import random
from typing import Any

import torch
from torch import nn

from ...exercises import Case, Exercise, Solution
from .data import DTYPES, draw_shapes, parameters


def draw(rng: random.Random, number: int) -> Case:
    count, dtype, seed = rng.randint(5, 9), DTYPES[number % 2], rng.getrandbits(32)
    shapes = draw_shapes(rng, count)
    if number % 4 == 2:
        shapes[rng.randrange(count)] = (0, 3)

    def made() -> list[nn.Parameter]:
        params = parameters(shapes, dtype, seed)
        if number % 4 == 3:  # of two dtypes
            params[::2] = parameters(shapes[::2], DTYPES[0], seed)
        if number % 4 == 1:  # views of one tensor
            flat = torch.cat([param.detach().flatten() for param in params])
            pieces = flat.split([param.numel() for param in params])
            params = [nn.Parameter(piece.view_as(param)) for piece, param in zip(pieces, params, strict=True)]
        return params

    sizes = [param.nbytes for param in made()]
    # In every third case a bucket is full to the byte, and in the first case part of a bucket remains.
    bucket_bytes = sum(sizes[-rng.randint(2, 3) :]) + (0 if number % 3 else 4)

    def args(rank: int) -> tuple[list[nn.Parameter], int]:
        params = made()
        params[number % count].requires_grad_(False)  # the caller decides which parameters are in the list
        return params, bucket_bytes

    what = f"parameters of {', '.join(map(str, sizes))} bytes, buckets of {bucket_bytes}"
    return Case(world_size=0, args=args, what=what)


def places(solution: Solution, params: list[nn.Parameter], bucket_bytes: int) -> Any:
    """Return the buckets, with each parameter's place in the list, and whether the list is as it was."""
    place = {id(param): number for number, param in enumerate(params)}
    buckets = solution(params, bucket_bytes)
    if not isinstance(buckets, list | tuple) or not all(isinstance(bucket, list | tuple) for bucket in buckets):
        return buckets
    places_of = [[place.get(id(param), -1) for param in bucket] for bucket in buckets]
    return {
        "buckets, as places in params (-1: not in it)": places_of,
        "the list params is as it was": list(map(id, params)) == list(place),
    }


exercise = Exercise("data_parallel.make_buckets", title="Put parameters into buckets", draw=draw, trial=places,
    inputs_matter=False, case_count=12, task="""
    Return a list of buckets. Each bucket is a list of parameters, and each of `params` is in exactly one bucket. Go
    from the last parameter, whose gradient backward computes first, to the first, and keep this order inside each
    bucket. Close a bucket as soon as its parameters have `bucket_bytes` bytes or more together. The parameters that
    remain at the end are a bucket as well. Leave the list `params` as it is.""", hints="""
    Which gradient does backward compute first: that of the first layer, or that of the last?

    Fill a list, parameter by parameter. When it has enough bytes, add it to the buckets and begin an empty one. What is
    in the list when no parameter is left?

    `reversed(params)` and `param.nbytes`, which is `param.numel() * param.element_size()`.

    ```python
    buckets, bucket = [], []
    for param in reversed(params):
        bucket.append(param)
        if ... >= bucket_bytes:
            ...
    if bucket:
        ...
    ```
    """, explanation="""
    Backward goes from the loss to the input, so the last parameters get their gradients first. In this order, a bucket
    is complete long before backward has ended. Buckets are cut by bytes, not by elements or parameters, because the
    cost of a call depends on its bytes. All ranks have the same parameters in the same order, so they make the same
    buckets.""")


@exercise
def make_buckets(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Return `params`, the last one first, cut into buckets.

    A bucket is closed as soon as its parameters have `bucket_bytes` bytes or more together. The list
    `params` stays as it is.
    """
    buckets: list[list[nn.Parameter]] = []
    bucket: list[nn.Parameter] = []
    for param in reversed(params):
        bucket.append(param)
        if sum(p.numel() * p.element_size() for p in bucket) >= bucket_bytes:
            buckets.append(bucket)
            bucket = []
    if bucket:
        buckets.append(bucket)
    return buckets


exercise.edit("from-the-first", {"reversed(params)": "params"}, """
    You begin with the first parameter. Backward computes its gradient last, so the first bucket would be complete only
    at the end. Next: go through the parameters from the last to the first.""")

exercise.edit("counts-elements", {"p.numel() * p.element_size()": "p.numel()"}, """
    You count elements instead of bytes, so your buckets are several times too large.
    Next: count `param.nbytes`; an element has `param.element_size()` bytes.""")

exercise.edit("four-bytes-each", {"p.element_size()": "4"}, """
    You count 4 bytes for each element. An element of float32 has 4, and not all of these parameters are float32.
    Next: use `param.element_size()` or `param.nbytes`.""")

exercise.edit("one-dtype-for-all", {"p.element_size()": "params[0].element_size()"}, """
    You count the bytes of each element as in the first parameter. These parameters have different dtypes.
    Next: take each parameter's own `element_size()`, or its `nbytes`.""")

exercise.edit("loses-the-last", {"if bucket:\nbuckets.append(bucket)\n": ""}, """
    The parameters that remain at the end are in no bucket. Their gradients would never be averaged, and the ranks would
    drift apart. Next: after the loop, add the remaining parameters as a bucket.""")

exercise.edit("empty-at-the-end", {"if bucket:\nbuckets.append(bucket)": "buckets.append(bucket)"}, """
    If the last bucket is exactly full, your list ends with an empty one.
    Next: add the remaining parameters only if there are any.""")

exercise.edit("empties-what-it-put-away", {"bucket = []": "bucket.clear()"}, """
    All your buckets are the same list: `clear()` empties the list that you have just added to the buckets.
    Next: begin a new list instead of emptying the old one.""")

exercise.edit("closed-before", {"bucket.append(param)\nif sum(p.numel() * p.element_size() for p in bucket) >= "
    "bucket_bytes:\nbuckets.append(bucket)\nbucket = []": "if bucket and sum(p.nbytes for p in [*bucket, param]) > "
    "bucket_bytes:\n    buckets.append(bucket)\n    bucket = []\nbucket.append(param)"}, """
    You close a bucket before it would become larger than `bucket_bytes`. Here `bucket_bytes` is a minimum, the size
    that makes a call worth its cost. Next: add the parameter first, then compare the bytes.""")

exercise.edit("only-when-more", {">= bucket_bytes": "> bucket_bytes"}, """
    A bucket with exactly `bucket_bytes` bytes stays open. Next: read "or more" in the task again.""")

exercise.edit("one-for-each", {"sum(p.numel() * p.element_size() for p in bucket) >= bucket_bytes": "bucket"}, """
    Each parameter has a bucket of its own, so there are as many calls as without buckets.
    Next: keep adding to a bucket until it has `bucket_bytes`.""")

exercise.edit("cut-from-the-first", {"reversed(params)": "params",
    "return buckets": "return [bucket[::-1] for bucket in buckets[::-1]]"}, """
    The order is right, but the cuts are counted from the first parameter. So the bucket that remains, which may be
    small, is complete first. Next: count the bytes from the last parameter, whose gradient backward computes first.""")

exercise.edit("leaves-out-frozen", {"for param in reversed(params):":
    "for param in reversed(params):\n    if not param.requires_grad:\n        continue"}, """
    You leave out frozen parameters. The task asks for every parameter of the list: its caller decides which parameters
    are in it. Next: remove the condition on `requires_grad`.""")

exercise.edit("changes-the-list", {"for param in reversed(params)": "params.reverse()\nfor param in params"}, """
    The buckets are right. But your function changes the list `params`, which its caller still uses.
    Next: read the list with `reversed`, which changes nothing, or work on a copy, `list(params)`.""")


@exercise.mistake
def keeps_the_size(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """From the second bucket on, every parameter has one of its own: the bytes of closed buckets still count.
    Next: what should be 0 when a new bucket begins?"""
    buckets: list[list[nn.Parameter]] = [[]]
    size = 0
    for param in reversed(params):
        buckets[-1].append(param)
        size += param.nbytes
        if size >= bucket_bytes:
            buckets.append([])
    return [bucket for bucket in buckets if bucket]


@exercise.variant
def with_a_running_sum(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = [[]]
    filled = 0
    for param in params[::-1]:
        buckets[-1].append(param)
        filled += param.nbytes
        if filled >= bucket_bytes:
            buckets.append([])
            filled = 0
    return buckets if buckets[-1] else buckets[:-1]


@exercise.variant
def takes_from_the_end(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    left, buckets = list(params), []
    while left:
        bucket = [left.pop()]
        while left and sum(param.nbytes for param in bucket) < bucket_bytes:
            bucket.append(left.pop())
        buckets.append(bucket)
    return buckets
