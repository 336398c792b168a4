"""Buckets that are filled and sent during backward, one at a time."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...exercises import Case, Exercise, Solution, draw_world_size, same_calls, whole_numbers
from ...meter import mark
from ..data_parallel.data import Ladder, last_rank_lags_behind, meet
from .data import DTYPES, Bucket, grad_shard, keeps_no_more
from .hand_over import hand_over
from .start_reduction import start_reduction


def draw(rng: random.Random, number: int) -> Case:
    """Draw backwards that use every layer, and fill the buckets in order, or the second before the first.

    Draw 2 has one backward in which a rank leaves a layer out. Then all buckets have one size, so that two different
    buckets that meet are summed without an error, equally on every run. In draw 5, all ranks leave out the last layer
    in the first of two backwards, and with it two of three gradients of a bucket. Draws 4 and 5 have 4 ranks: with
    fewer, the gradient of a bucket that starts late would not always be larger than what may be kept.
    """
    world_size, layers, seed = draw_world_size(rng, number), rng.randint(4, 5), rng.getrandbits(32)
    dtype, widths, backwards = DTYPES[number % 2], rng.sample(range(3, 9), layers), 2
    per_bucket, unused, swapped = 2, {}, number == 4
    world_size = 4 if number in (4, 5) else world_size
    if number == 2:
        widths, backwards = [rng.randint(3, 6)] * layers, 1
        unused = {rng.randrange(world_size): rng.randint(1, layers - 1)}
    elif number == 5:
        layers, widths, per_bucket = 5, sorted(rng.sample(range(3, 9), 5)), 3
    elif number and not swapped:
        per_bucket = rng.choice((2, 3))  # with 3, layers and buckets do not end together

    def args(rank: int) -> tuple[list[int], list[list[int]], int, bool, list[Tensor], bool]:
        torch.manual_seed(seed)
        used = [[layer for layer in range(layers) if unused.get(rank) != layer]] * backwards
        if number == 5:
            used = [[*range(layers - 1)], [*range(layers)]]
        batches = [whole_numbers(3, 2, seed=seed + part, rank=100 * rank, dtype=dtype) for part in range(backwards)]
        return widths, used, per_bucket, swapped, batches, number not in (2, 4, 5)

    what = f"{layers} layers, {per_bucket} parameters in a bucket"
    what += f", {backwards} backward passes" * (backwards > 1) + ", a layer unused on one rank" * bool(unused)
    what += ", the last layer unused in the first" * (number == 5)
    what += ", the second bucket complete before the first" * swapped
    return Case(world_size=world_size, args=args, what=what)


def shards_of_each_backward(
    solution: Solution, widths: list[int], used: list[list[int]], per_bucket: int, swapped: bool, batches: list[Tensor],
    lag: bool,
) -> list[list[Tensor | None]]:
    """Return the grad shards after each backward.

    With `lag`, the last rank reaches each layer later than the others. A solution that waits for it too early then
    waits forever. There is no lag where a rank lacks a gradient, or where one gradient completes two buckets: there a
    right solution may wait as well.
    """
    backward, shards = 0, []

    def on_layer(layer: int) -> None:
        mark(f"In backward {backward}, before layer {layer}")
        if lag:
            last_rank_lags_behind(layer, len(widths))

    model = Ladder(widths, used[0], batches[0].dtype, on_layer)
    params = list(model.parameters())[::-1]
    buckets = [Bucket(params[begin : begin + per_bucket]) for begin in range(0, len(params), per_bucket)]
    if swapped:
        buckets[:2] = buckets[1::-1]
    finish = solution(buckets)
    for batch, layers in zip(batches, used, strict=True):
        backward, model.used = backward + 1, set(layers)
        model(batch).mean().backward()
        if lag:
            meet()
        finish()
        shards.append([grad_shard(bucket) for bucket in buckets])
    return shards


exercise = Exercise("zero2.reduce_during_backward", title="Reduce during backward", draw=draw,
    trial=shards_of_each_backward, asynchronous=True, inputs_matter=False, measured=True,
    rules=[same_calls(), lambda trial: keeps_no_more(trial, shards=2)], task="""
    Put each gradient into its bucket as soon as it is there: `hand_over(bucket.params, ...)` passes it to you, and
    `bucket.add(number, grad)` stores it. As soon as a bucket and all buckets before it are complete, start it with your
    `start_reduction`, one reduce-scatter for each bucket, and let backward go on. At most one bucket is being sent at a
    time, so finish the previous one first. (Right after the start is accepted, too.) Return a function `finish`, which
    is called after each backward. It starts the buckets that are not started yet, because some parameters may have no
    gradient, perhaps on this rank only. Then it finishes the last bucket. In each backward, every rank starts every
    bucket, in order.""", hints="""
    When is a bucket's memory needed last? What would be in memory if all buckets waited for the end of backward?

    For each bucket, count how many gradients are still missing. After each gradient, the next bucket in line may be
    complete, and maybe the bucket after it, too. Before you start a bucket, finish the previous one.

    `hand_over(bucket.params, functools.partial(on_gradient, index))` calls `on_gradient(index, number, grad)`.
    `start_reduction(bucket)` returns the function that finishes it.

    ```python
    missing = [len(bucket.params) for bucket in buckets]
    finishes = []

    def start_next():
        ...  # finish the previous bucket, if there is one, and drop the function: finishes[-1] = None
        finishes.append(...)

    def on_gradient(index, number, grad):
        ...  # put it into its bucket, and count
        while len(finishes) < len(buckets) and ...:
            start_next()

    ...  # hand the gradients of each bucket over

    def finish():
        ...  # start the rest, finish the last, reset for the next backward

    return finish
    ```
    """, explanation="""
    `len(finishes)` is the number of the next bucket, so every rank starts the buckets in the same order. Usually one
    bucket is being filled and one is being sent. So a rank holds the whole gradients of two buckets, and only shards
    of all others. More than one bucket is being filled where gradients arrive in a different order from the list, as
    those of `norm2` in TinyGPT, which come before those of attention. If more buckets were sent at a time, their memory
    would add up, at worst to the whole gradient. If you waited for each bucket at once, backward would stop each time.
    The loop is a `while`, not an `if`, because one gradient can complete the first of several buckets in line, and the
    others may be complete already. The function that finishes a bucket may still refer to the sum that arrived. A list
    of all these functions would then hold every gradient shard a second time, so each is dropped once it has done its
    work. The check accepts both.""")


@exercise
def reduce_during_backward(buckets: list[Bucket]) -> Callable[[], None]:
    """From now on, move each gradient into its bucket, and start the buckets during backward, in order.

    Start a bucket when it and all buckets before it are complete. Finish the previous one right
    before, or right after. Return a function, to be called after each backward, that starts the buckets
    that are still incomplete, and finishes the last.
    """
    missing = [len(bucket.params) for bucket in buckets]
    finishes: list[Any] = []  # one for each started bucket: its function while it is under way, then None

    def start_next() -> None:
        if finishes:
            finishes[-1]()
            finishes[-1] = None  # it refers to the shard that arrived
        finishes.append(start_reduction(buckets[len(finishes)]))

    def on_gradient(index: int, number: int, grad: torch.Tensor) -> None:
        buckets[index].add(number, grad)
        missing[index] -= 1
        while len(finishes) < len(buckets) and missing[len(finishes)] == 0:
            start_next()

    for index, bucket in enumerate(buckets):
        hand_over(bucket.params, partial(on_gradient, index))

    def finish() -> None:
        while len(finishes) < len(buckets):
            start_next()
        finishes[-1]()
        finishes.clear()
        missing[:] = [len(bucket.params) for bucket in buckets]

    return finish


DROP = "\nfinishes[-1] = None  # it refers to the shard that arrived"
FINISH_PREVIOUS = f"if finishes:\nfinishes[-1](){DROP}\n"
START_COMPLETE = "while len(finishes) < len(buckets) and missing[len(finishes)] == 0:\nstart_next()"
START_REST = "while len(finishes) < len(buckets):\nstart_next()\n"

exercise.edit("all-at-the-end", {f"\n{START_COMPLETE}": ""}, """
    The shards are right, but no bucket starts before the last gradient of the model is there. By then the whole
    gradient is in memory, in your buckets. Next: start a bucket as soon as its last gradient is in it.""")

exercise.edit("starts-one-only", {"while len(finishes) < len(buckets) and": "if len(finishes) < len(buckets) and"}, """
    After a gradient you start at most one bucket. Buckets behind it may be complete, too, and they stay in memory.
    Next: after you start a bucket, look at the next one in line again, until one is incomplete.""")

TOO_MANY = """
    More than one bucket is being sent at a time: you finish a bucket later than when the next one starts, or only after
    backward. Each keeps its whole gradient until then. Next: when you start a bucket, finish the previous one."""

exercise.edit("all-under-way", {FINISH_PREVIOUS: "", f"{START_REST}finishes[-1]()":
    "while len(finishes) < len(buckets):\n    start_next()\nfor finish_one in finishes:\n    finish_one()"}, TOO_MANY)

for number, word in ((2, "two"), (3, "three")):
    exercise.edit(f"{word}-under-way", {
        FINISH_PREVIOUS: f"if len(finishes) >= {number}:\n    finishes[-{number}]()\n    finishes[-{number}] = None\n",
        f"{START_REST}finishes[-1]()": "while len(finishes) < len(buckets):\n    start_next()\n"
        f"for finish_one in finishes[-{number}:]:\n    finish_one()"}, TOO_MANY)

exercise.edit("finishes-at-once", {FINISH_PREVIOUS: "", "(buckets[len(finishes)]))": "(buckets[len(finishes)]))\n"
    "finishes[-1]()", "finishes[-1]()\nfinishes.clear()": "finishes.clear()"}, """
    You finish a bucket as soon as you start it, inside the hook. Each time, backward stops until every rank has reached
    this bucket. Next: finish a bucket when you start the next one, and the last bucket after backward.""")

exercise.edit("as-they-complete", {"def start_next()": "waiting = list(range(len(buckets)))\n\ndef start(index)",
    "buckets[len(finishes)]))": "buckets[index]))\nwaiting.remove(index)",
    START_COMPLETE: "if missing[index] == 0:\n    start(index)", START_REST: "while waiting:\n    start(waiting[0])\n",
    "finishes.clear()": "finishes.clear()\nwaiting[:] = range(len(buckets))"}, """
    You start the buckets in the order in which they become complete. On a rank that lacks a gradient this order
    differs, and then one rank's bucket is summed with a different bucket of the other ranks.
    Next: start a bucket only when all buckets before it are started.""")

exercise.edit("never-starts-the-incomplete", {f"{START_REST}finishes[-1]()": "if finishes:\n    finishes[-1]()"}, """
    A bucket that lacks a gradient on this rank never starts here, and the other ranks wait for it.
    Next: in `finish`, start every bucket that is not started yet. `start_reduction` sends zeros for an empty one.""")

exercise.edit("counts-on", {"\nmissing[:] = [len(bucket.params) for bucket in buckets]": ""}, """
    In the second backward, the gradients of the first still count, so no bucket is complete at the right moment.
    Next: reset the counts at the end of `finish`.""")

exercise.edit("starts-once", {"finishes.clear()": "finishes[-1] = lambda: None"}, """
    In the second backward no bucket starts: all of them still count as started.
    Next: at the end of `finish`, begin again with the first bucket.""")

exercise.edit("all-into-the-last", {"partial(on_gradient, index)":
    "lambda number, grad: on_gradient(index, number, grad)"}, """
    Every gradient goes into the last bucket. A function that you define in a loop reads the loop's variable when it is
    called, and by then the loop has ended.
    Next: bind the value when you define the function, with a default argument or `functools.partial`.""")

exercise.edit("keeps-gradients", {"hand_over(bucket.params, partial(on_gradient, index))":
    "for number, param in enumerate(bucket.params):\n    param.register_post_accumulate_grad_hook("
    "lambda param, i=index, n=number: on_gradient(i, n, param.grad))"}, """
    The parameters keep their gradients: the whole gradient stays in memory, and the next backward adds to it.
    Next: use your `hand_over`.""")

exercise.variant_edit("looks-at-each-bucket", {START_COMPLETE:
    "for count in missing[len(finishes) :]:\n    if count:\n        break\n    start_next()",
    "partial(on_gradient, index)": "lambda number, grad, index=index: on_gradient(index, number, grad)"})

exercise.variant_edit("keeps-the-functions", {DROP: ""})

exercise.variant_edit("with-sets", {
    "missing = [len(bucket.params) for": "missing = [set(range(len(bucket.params))) for",
    "missing[index] -= 1": "missing[index].remove(number)",
    "missing[len(finishes)] == 0": "not missing[len(finishes)]",
    "missing[:] = [len(bucket.params) for": "missing[:] = [set(range(len(bucket.params))) for"})
