"""Buckets that fill and leave during backward, one under way at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ...meter import mark
from ..data_parallel.data import Ladder, last_rank_lags_behind, meet, ranks
from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size, whole_numbers
from ..rules import same_calls
from . import stubs
from .bucket import Bucket
from .data import DTYPES, grad_shard
from .hand_over import hand_over
from .rules import keeps_no_more
from .start_reduction import start_reduction

Finish = Callable[[], None]
OnGradient = Callable[[int, int, Tensor], None]


def reduce_during_backward(buckets: list[Bucket]) -> Callable[[], None]:
    """From now on, move each gradient into its bucket, and start the buckets during backward, in order."""
    missing = [len(bucket.params) for bucket in buckets]
    finishes: list[Callable[[], None]] = []  # of the buckets that were started; the last one may be under way

    def start_next() -> None:
        if finishes:
            finishes[-1]()
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


class Queue:
    """What most of the mistakes have right: how many gradients each bucket lacks, and which bucket is under way."""

    def __init__(self, buckets: list[Bucket]) -> None:
        self.buckets = buckets
        self.under_way: list[Finish] = []
        self.begin()

    def begin(self) -> None:
        self.next = 0
        self.missing = [len(bucket.params) for bucket in self.buckets]

    def start(self, index: int) -> None:
        self.under_way.append(start_reduction(self.buckets[index]))

    def finish(self) -> None:
        while self.under_way:
            self.under_way.pop(0)()

    def start_next(self) -> None:
        self.finish()
        self.start(self.next)
        self.next += 1

    def arrive(self, index: int, number: int, grad: Tensor) -> None:
        self.buckets[index].add(number, grad)
        self.missing[index] -= 1

    def start_complete(self) -> None:
        while self.next < len(self.buckets) and self.missing[self.next] == 0:
            self.start_next()

    def start_rest(self) -> None:
        while self.next < len(self.buckets):
            self.start_next()

    def on_gradient(self, index: int, number: int, grad: Tensor) -> None:
        self.arrive(index, number, grad)
        self.start_complete()

    def end(self) -> None:
        self.start_rest()
        self.finish()
        self.begin()


def hook(buckets: list[Bucket], on_gradient: OnGradient) -> None:
    for index, bucket in enumerate(buckets):
        hand_over(bucket.params, partial(on_gradient, index))


def all_at_the_end(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)
    hook(buckets, queue.arrive)
    return queue.end


def with_the_last_gradient(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def on_gradient(index: int, number: int, grad: Tensor) -> None:
        queue.arrive(index, number, grad)
        if not any(queue.missing):
            queue.start_rest()

    hook(buckets, on_gradient)
    return queue.end


def all_under_way(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def on_gradient(index: int, number: int, grad: Tensor) -> None:
        queue.arrive(index, number, grad)
        while queue.next < len(buckets) and queue.missing[queue.next] == 0:
            queue.start(queue.next)
            queue.next += 1

    hook(buckets, on_gradient)
    return queue.end


def finishes_at_once(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def on_gradient(index: int, number: int, grad: Tensor) -> None:
        queue.on_gradient(index, number, grad)
        queue.finish()

    hook(buckets, on_gradient)
    return queue.end


def as_they_complete(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)
    started: set[int] = set()

    def on_gradient(index: int, number: int, grad: Tensor) -> None:
        queue.arrive(index, number, grad)
        if queue.missing[index] == 0:
            queue.finish()
            queue.start(index)
            started.add(index)

    def end() -> None:
        for index in set(range(len(buckets))) - started:
            queue.finish()
            queue.start(index)
        queue.finish()
        started.clear()
        queue.begin()

    hook(buckets, on_gradient)
    return end


def never_starts_the_incomplete(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def end() -> None:
        queue.finish()
        queue.begin()

    hook(buckets, queue.on_gradient)
    return end


def never_finishes_the_last(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def end() -> None:
        queue.start_rest()
        queue.under_way.clear()
        queue.begin()

    hook(buckets, queue.on_gradient)
    return end


def never_begins_anew(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def end() -> None:
        queue.start_rest()
        queue.finish()

    hook(buckets, queue.on_gradient)
    return end


def counts_on(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def end() -> None:
        queue.start_rest()
        queue.finish()
        queue.next = 0

    hook(buckets, queue.on_gradient)
    return end


def by_the_first_gradient(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def on_gradient(index: int, number: int, grad: Tensor) -> None:
        queue.arrive(index, number, grad)
        while queue.next <= index:
            queue.start_next()

    hook(buckets, on_gradient)
    return queue.end


def before_the_gradient_is_in(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def on_gradient(index: int, number: int, grad: Tensor) -> None:
        queue.missing[index] -= 1
        queue.start_complete()
        queue.buckets[index].add(number, grad)

    hook(buckets, on_gradient)
    return queue.end


def all_into_the_last(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)
    for index, bucket in enumerate(buckets):
        hand_over(bucket.params, lambda number, grad: queue.on_gradient(index, number, grad))  # noqa: B023
    return queue.end


def never_adds(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def on_gradient(index: int, number: int, grad: Tensor) -> None:
        queue.missing[index] -= 1
        queue.start_complete()

    hook(buckets, on_gradient)
    return queue.end


def keeps_gradients(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)

    def on_gradient(param: nn.Parameter, index: int, number: int) -> None:
        assert param.grad is not None
        queue.on_gradient(index, number, param.grad)

    for index, bucket in enumerate(buckets):
        for number, param in enumerate(bucket.params):
            param.register_post_accumulate_grad_hook(partial(on_gradient, index=index, number=number))
    return queue.end


def with_sets(buckets: list[Bucket]) -> Finish:
    arrived: list[set[int]] = [set() for _ in buckets]
    waiting = list(range(len(buckets)))
    under_way: Finish | None = None

    def start() -> None:
        nonlocal under_way
        if under_way is not None:
            under_way()
        under_way = start_reduction(buckets[waiting.pop(0)])

    def take(bucket_number: int) -> Callable[[int, Tensor], None]:
        def on_gradient(number: int, grad: Tensor) -> None:
            buckets[bucket_number].add(number, grad)
            arrived[bucket_number].add(number)
            while waiting and len(arrived[waiting[0]]) == len(buckets[waiting[0]].params):
                start()

        return on_gradient

    for place, bucket in enumerate(buckets):
        hand_over(bucket.params, take(place))

    def finish() -> None:
        nonlocal under_way
        while waiting:
            start()
        if under_way is not None:
            under_way()
        under_way = None
        for numbers in arrived:
            numbers.clear()
        waiting.extend(range(len(buckets)))

    return finish


def with_an_object(buckets: list[Bucket]) -> Finish:
    queue = Queue(buckets)
    hook(buckets, queue.on_gradient)
    return queue.end


def draw(rng: random.Random, number: int) -> Case:
    """Backwards in which every layer is used; or one in which some ranks leave some out, with buckets of one size.

    With buckets of one size, a bucket that meets another is summed without a word, on every run alike.
    """
    world_size, layers, seed = draw_world_size(rng, number), rng.randint(4, 5), rng.getrandbits(32)
    dtype, widths, backwards = DTYPES[number % 2], rng.sample(range(3, 9), layers), 2
    per_bucket, unused = 2, {}
    if number in (2, 5):
        widths, backwards = [rng.randint(3, 6)] * layers, 1
        unused = {rng.randrange(world_size): rng.randint(1, layers - 1)}
    elif number:
        per_bucket = rng.choice((2, 3))  # with 3, layers and buckets do not end together

    def args(rank: int) -> tuple[list[int], list[int], int, list[Tensor], bool]:
        torch.manual_seed(seed)
        used = [layer for layer in range(layers) if unused.get(rank) != layer]
        batches = [whole_numbers(3, 2, seed=seed + part, rank=100 * rank, dtype=dtype) for part in range(backwards)]
        return widths, used, per_bucket, batches, not unused

    about = f"{ranks(world_size)}, {layers} layers, {per_bucket} parameters in a bucket"
    about += f", {backwards} backwards" * (backwards > 1) + ", a layer unused on one rank" * bool(unused)
    return Case(world_size=world_size, args=args, about=about)


def shards_of_each_backward(
    solution: Solution, widths: list[int], used: list[int], per_bucket: int, batches: list[Tensor], lag: bool
) -> list[list[Tensor | None]]:
    """The grad shards after each backward.

    With `lag`, the last rank comes later to each layer: whoever waits for it too early, waits for ever. Not so where
    a rank lacks a gradient: this one may keep the others waiting.
    """
    backward, shards = 0, []

    def on_layer(layer: int) -> None:
        mark(f"In backward {backward}, before layer {layer}")
        if lag:
            last_rank_lags_behind(layer, len(widths))

    model = Ladder(widths, used, batches[0].dtype, on_layer)
    params = list(model.parameters())[::-1]
    buckets = [Bucket(params[begin : begin + per_bucket]) for begin in range(0, len(params), per_bucket)]
    finish = solution(buckets)
    for batch in batches:
        backward += 1
        model(batch).mean().backward()
        if lag:
            meet()
        finish()
        shards.append([grad_shard(bucket) for bucket in buckets])
    return shards


REDUCE_DURING_BACKWARD = Exercise(
    name="zero2.reduce_during_backward",
    title="Reduce during backward",
    task="Let each gradient go into its bucket as soon as it is there: `hand_over(bucket.params, ...)` brings it, "
    "`bucket.add(number, grad)` takes it. As soon as a bucket and those before it are complete, start it with your "
    "`start_reduction`, and let backward go on; at most one is under way, so finish the one before. Return a function "
    "`finish`, which is called after each backward: it starts the buckets that are not started yet (some parameters "
    "may have no gradient, on this rank alone), and finishes what is under way. All ranks start all buckets, in order, "
    "in each backward.",
    stub=stubs.reduce_during_backward,
    reference=reduce_during_backward,
    draw=draw,
    trial=shards_of_each_backward,
    inputs_matter=False,
    measured=True,
    rules=[same_calls(), keeps_no_more],
    variants={"with-sets": with_sets, "with-an-object": with_an_object},
    mistakes=[
        Mistake(
            id="all-at-the-end",
            solution=all_at_the_end,
            told="The shards are right, and every bucket waits until backward is over. By then the whole "
            "gradient is in memory, in your buckets.",
            action="Start a bucket as soon as its last gradient is in it.",
        ),
        Mistake(
            id="with-the-last-gradient",
            solution=with_the_last_gradient,
            told="All buckets are started when the last gradient has come. By then the whole gradient is in "
            "memory, in your buckets.",
            action="Look, at each gradient, whether the next bucket in line is complete.",
        ),
        Mistake(
            id="all-under-way",
            solution=all_under_way,
            told="Buckets are started in time, and finished only after backward. Until then each keeps what it "
            "sends: together that is the whole gradient.",
            action="Before you start a bucket, finish the one that is under way.",
        ),
        Mistake(
            id="finishes-at-once",
            solution=finishes_at_once,
            told="A bucket is finished as soon as it is started, inside the hook. So backward stands still "
            "until every rank has come this far, each time.",
            action="Finish a bucket when the next one is started, and the last one after backward.",
        ),
        Mistake(
            id="as-they-complete",
            solution=as_they_complete,
            told="Buckets are started in the order in which they become complete. A rank that lacks a gradient "
            "completes them in another order, and then one rank's bucket meets another bucket of its peers.",
            action="Start a bucket only when all buckets before it are started.",
        ),
        Mistake(
            id="never-starts-the-incomplete",
            solution=never_starts_the_incomplete,
            told="A bucket that lacks a gradient on this rank is never started here, and the other ranks wait for it.",
            action="In `finish`, start whatever is not started yet: `start_reduction` brings zeros where nothing is.",
        ),
        Mistake(
            id="never-finishes-the-last",
            solution=never_finishes_the_last,
            told="The last bucket is still under way when your `finish` returns, and nobody waits for it: its "
            "average never reaches the shard.",
            action="In `finish`, finish it after the last start.",
        ),
        Mistake(
            id="never-begins-anew",
            solution=never_begins_anew,
            told="In the second backward all buckets seem to be started already: nothing leaves.",
            action="At the end of `finish`, begin anew: nothing is started, and every gradient is missing.",
        ),
        Mistake(
            id="counts-on",
            solution=counts_on,
            told="In the second backward, gradients of the first still count: no bucket becomes complete at the "
            "right moment.",
            action="Count anew at the end of `finish`.",
        ),
        Mistake(
            id="by-the-first-gradient",
            solution=by_the_first_gradient,
            told="A bucket leaves when the first of its gradients is there. The others are not in it yet.",
            action="Start it when all of its gradients are there.",
        ),
        Mistake(
            id="before-the-gradient-is-in",
            solution=before_the_gradient_is_in,
            told="The gradient that completes a bucket is counted, and the bucket leaves, before it is put in.",
            action="Call `bucket.add(number, grad)` first.",
        ),
        Mistake(
            id="all-into-the-last",
            solution=all_into_the_last,
            told="Every gradient goes into the last bucket. A function that is defined in a loop sees the "
            "loop's variable as it is when it is called, and then the loop has ended.",
            action="Bind the value at definition: `functools.partial(on_gradient, index)`.",
        ),
        Mistake(
            id="never-adds",
            solution=never_adds,
            told="Buckets leave in time, and they are empty: the gradients are counted, and never put in.",
            action="Call `bucket.add(number, grad)` for each.",
        ),
        Mistake(
            id="keeps-gradients",
            solution=keeps_gradients,
            told="The parameters keep their gradients: the whole gradient stays in memory, and the next "
            "backward adds to it.",
            action="Use your `hand_over`.",
        ),
    ],
    hints=[
        "When is a bucket's memory needed last? What can be computed while it travels, and what would be in memory if "
        "all buckets waited for the end?",
        "Count, for each bucket, how many gradients it still lacks. When one has come, the next bucket in line may be "
        "complete, and maybe the one after it. Before a bucket starts, the one under way is finished.",
        "`hand_over(bucket.params, functools.partial(on_gradient, index))` calls `on_gradient(index, number, grad)`. "
        "`start_reduction(bucket)` returns the function that finishes it.",
        "```python\nmissing = [len(bucket.params) for bucket in buckets]\nfinishes = []\n\ndef start_next():\n"
        "    ...  # finish the one before, if there is one\n    finishes.append(...)\n\n"
        "def on_gradient(index, number, grad):\n    ...  # put it into its bucket, and count\n"
        "    while len(finishes) < len(buckets) and ...:\n        start_next()\n\n"
        "...  # hand the gradients of each bucket over\n\ndef finish():\n"
        "    ...  # start the rest, finish the last, begin anew\n\nreturn finish\n```",
    ],
    explanation="`len(finishes)` is the number of the next bucket, so buckets leave in the same order on every rank. "
    "At any moment one bucket fills and one travels: two buckets of whole gradients, and for all others the shard. "
    "That is what bounds the memory. If more of them were under way, they would add up, in the worst case to the whole "
    "gradient; if each were waited for at once, backward would stand still. `while` rather than `if`, because one "
    "gradient can make several buckets go that waited in line.",
)
