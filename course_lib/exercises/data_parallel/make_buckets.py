"""Parameters cut into buckets, by bytes, in the order in which backward gives gradients."""

from __future__ import annotations

import random
from typing import Any

from torch import nn

from ..declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import DTYPES, draw_shapes, parameters


def make_buckets(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Return `params`, the last one first, cut into buckets of `bucket_bytes` bytes or more."""
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


def cut(params: list[nn.Parameter], sizes: list[int], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """`params` in their order, closed as soon as their `sizes` reach `bucket_bytes`."""
    buckets: list[list[nn.Parameter]] = [[]]
    filled = 0
    for param, size in zip(params, sizes, strict=True):
        buckets[-1].append(param)
        filled += size
        if filled >= bucket_bytes:
            buckets.append([])
            filled = 0
    return buckets if buckets[-1] else buckets[:-1]


def nbytes(params: list[nn.Parameter]) -> list[int]:
    return [param.nbytes for param in params]


def from_the_first(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    return cut(params, nbytes(params), bucket_bytes)


def turned_afterwards(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    return cut(params, nbytes(params), bucket_bytes)[::-1]


def counts_elements(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    backwards = params[::-1]
    return cut(backwards, [param.numel() for param in backwards], bucket_bytes)


def four_bytes_each(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    backwards = params[::-1]
    return cut(backwards, [4 * param.numel() for param in backwards], bucket_bytes)


def loses_the_last(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    backwards = params[::-1]
    buckets = cut(backwards, nbytes(backwards), bucket_bytes)
    return buckets if sum(nbytes(buckets[-1])) >= bucket_bytes else buckets[:-1]


def empty_at_the_end(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    buckets = make_buckets(params, bucket_bytes)
    return [*buckets, []] if sum(nbytes(buckets[-1])) >= bucket_bytes else buckets


def empties_what_it_put_away(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    bucket: list[nn.Parameter] = []
    for param in reversed(params):
        bucket.append(param)
        if sum(nbytes(bucket)) >= bucket_bytes:
            buckets.append(bucket)
            bucket.clear()
    return [*buckets, bucket] if bucket else buckets


def closed_before(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = [[]]
    for param in reversed(params):
        if buckets[-1] and sum(nbytes(buckets[-1])) + param.nbytes > bucket_bytes:
            buckets.append([])
        buckets[-1].append(param)
    return buckets


def only_when_more(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    backwards = params[::-1]
    return cut(backwards, nbytes(backwards), bucket_bytes + 1)


def never_reset(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = [[]]
    filled = 0
    for param in reversed(params):
        buckets[-1].append(param)
        filled += param.nbytes
        if filled >= bucket_bytes:
            buckets.append([])
    return buckets if buckets[-1] else buckets[:-1]


def one_for_each(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    return [[param] for param in reversed(params)]


def one_for_all(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    return [params[::-1]]


def with_a_running_sum(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    backwards = params[::-1]
    return cut(backwards, nbytes(backwards), bucket_bytes)


def takes_from_the_end(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    left, buckets = list(params), []
    while left:
        bucket = [left.pop()]
        while left and sum(param.untyped_storage().nbytes() for param in bucket) < bucket_bytes:
            bucket.insert(0, left.pop())
        buckets.append(bucket)
    return buckets


def draw(rng: random.Random, number: int) -> Case:
    count, dtype, seed = rng.randint(5, 9), DTYPES[number % 2], rng.getrandbits(32)
    shapes = draw_shapes(rng, count)
    sizes = nbytes(parameters(shapes, dtype, seed))[::-1]
    # In every other case the first buckets are full to the byte, and in the first case a part of a bucket is left.
    bucket_bytes = sum(sizes[: rng.randint(2, 3)]) + (0 if number % 3 else 4)

    def args(rank: int) -> tuple[list[nn.Parameter], int]:
        params = parameters(shapes, dtype, seed)
        params[number % count].requires_grad_(False)  # whoever calls decides which parameters travel
        return params, bucket_bytes

    listed = ", ".join(map(str, sizes[::-1]))
    return Case(world_size=0, args=args, about=f"parameters of {listed} bytes, buckets of {bucket_bytes}")


def places(solution: Solution, params: list[nn.Parameter], bucket_bytes: int) -> Any:
    """The buckets, with each parameter's place in the list. Their order within a bucket is free."""
    place = {id(param): number for number, param in enumerate(params)}
    buckets = solution(params, bucket_bytes)
    if not isinstance(buckets, list) or not all(isinstance(bucket, list) for bucket in buckets):
        return buckets
    return [sorted(place.get(id(param), -1) for param in bucket) for bucket in buckets]


MAKE_BUCKETS = Exercise(
    name="data_parallel.make_buckets",
    title="Put parameters into buckets",
    task="Return a list of buckets, each a list of parameters, in which every one of `params` is once. Begin with the "
    "last parameter, whose gradient comes first in backward. Close a bucket as soon as its parameters have "
    "`bucket_bytes` bytes or more together; what is left in the end is a bucket as well.",
    stub=stubs.make_buckets,
    reference=make_buckets,
    draw=draw,
    trial=places,
    inputs_matter=False,
    case_count=12,
    variants={"with-a-running-sum": with_a_running_sum, "takes-from-the-end": takes_from_the_end},
    mistakes=[
        Mistake(
            id="from-the-first",
            solution=from_the_first,
            told="You begin with the first parameter. Its gradient is the last that backward computes, so the first "
            "bucket would be complete only at the very end.",
            action="Go through the parameters from the last to the first.",
        ),
        Mistake(
            id="turned-afterwards",
            solution=turned_afterwards,
            told="You cut from the first parameter on, and turn the list of buckets. Then the part of a bucket that is "
            "left over comes first, and boundaries lie elsewhere.",
            action="Turn the parameters before you cut.",
        ),
        Mistake(
            id="counts-elements",
            solution=counts_elements,
            told="You count elements where bytes were asked for: your buckets are several times too large.",
            action="An element has `param.element_size()` bytes; `param.nbytes` is the product.",
        ),
        Mistake(
            id="four-bytes-each",
            solution=four_bytes_each,
            told="You count 4 bytes for each element. That is float32; these parameters have another dtype.",
            action="Ask `param.element_size()`, or take `param.nbytes`.",
        ),
        Mistake(
            id="loses-the-last",
            solution=loses_the_last,
            told="Parameters that did not fill a bucket in the end are in none. Their gradients would never be "
            "averaged, and the ranks would drift apart.",
            action="After the loop, add what is left as a bucket of its own.",
        ),
        Mistake(
            id="empty-at-the-end",
            solution=empty_at_the_end,
            told="Where the last bucket is just full, an empty one follows it.",
            action="Add what is left only if there is something in it.",
        ),
        Mistake(
            id="empties-what-it-put-away",
            solution=empties_what_it_put_away,
            told="`clear()` empties the list that you have just put away: all buckets are one and the same list.",
            action="Begin a new list instead: `bucket = []`.",
        ),
        Mistake(
            id="closed-before",
            solution=closed_before,
            told="You close a bucket before it would grow past `bucket_bytes`. It was to be closed as soon as it has "
            "as much or more: `bucket_bytes` is the least that makes a call worth its cost, not the most.",
            action="Put the parameter in first, then look at how many bytes there are.",
        ),
        Mistake(
            id="only-when-more",
            solution=only_when_more,
            told="A bucket with exactly `bucket_bytes` bytes stays open: you compare with `>`.",
            action="Compare with `>=`.",
        ),
        Mistake(
            id="never-reset",
            solution=never_reset,
            told="From the first full bucket on, each parameter is in a bucket of its own: the count of bytes goes on "
            "where it should begin anew.",
            action="Set the count back to 0 whenever you close a bucket.",
        ),
        Mistake(
            id="one-for-each",
            solution=one_for_each,
            told="Each parameter has a bucket of its own, so there is no call less than without buckets.",
            action="Collect parameters until they have `bucket_bytes` bytes together.",
        ),
        Mistake(
            id="one-for-all",
            solution=one_for_all,
            told="All parameters are in one bucket. It is complete when backward has ended, so nothing can travel "
            "during backward.",
            action="Close a bucket as soon as it has `bucket_bytes` bytes, and begin the next one.",
        ),
    ],
    hints=[
        "In which order does backward give the gradients: that of the first layer first, or last?",
        "Fill a list, parameter by parameter. When it has enough bytes, put it away and begin an empty one. What is in "
        "your hands when the parameters are used up?",
        "`reversed(params)` and `param.nbytes`, which is `param.numel() * param.element_size()`.",
        "```python\nbuckets, bucket = [], []\nfor param in reversed(params):\n    bucket.append(param)\n"
        "    if ... >= bucket_bytes:\n        ...\nif bucket:\n    ...\n```",
    ],
    explanation="Backward goes from the loss to the input, so the last parameters have their gradients first: in this "
    "order a bucket is complete long before backward has ended. Bytes are counted, not elements or parameters, because "
    "what a call costs depends on its bytes. Every rank cuts alike, since all have the same parameters in the same "
    "order.",
)
