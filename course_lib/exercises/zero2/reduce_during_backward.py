"""Buckets that fill and leave during backward, one under way at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ...meter import mark
from ..checking.rules import same_calls
from ..data_parallel.data import Ladder, last_rank_lags_behind, meet, ranks
from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size, whole_numbers
from . import stubs
from .bucket import Bucket
from .data import DTYPES, grad_shard
from .hand_over import hand_over
from .rules import keeps_no_more
from .start_reduction import start_reduction

Finish = Callable[[], None]


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
    """What most of the mistakes have right, and each of them overrides a part of.

    Attributes:
        missing: how many gradients each bucket lacks.
        next: the bucket that is to be started next.
        under_way: what finishes the bucket that was started last.
    """

    def __init__(self, buckets: list[Bucket]) -> None:
        self.buckets = buckets
        self.under_way: list[Finish] = []
        self.begin()
        self.hook()

    @classmethod
    def on(cls, buckets: list[Bucket]) -> Finish:
        """The solution: to be called with buckets, it returns the function that finishes."""
        return cls(buckets).end

    def begin(self) -> None:
        self.next = 0
        self.missing = [len(bucket.params) for bucket in self.buckets]

    def hook(self) -> None:
        for index, bucket in enumerate(self.buckets):
            hand_over(bucket.params, partial(self.on_gradient, index))

    def on_gradient(self, index: int, number: int, grad: Tensor) -> None:
        self.arrive(index, number, grad)
        self.start_complete()

    def arrive(self, index: int, number: int, grad: Tensor) -> None:
        self.buckets[index].add(number, grad)
        self.missing[index] -= 1

    def start_complete(self) -> None:
        while self.next < len(self.buckets) and self.missing[self.next] == 0:
            self.start_next()

    def start_next(self) -> None:
        self.finish()
        self.start(self.next)
        self.next += 1

    def start(self, index: int) -> None:
        self.under_way.append(start_reduction(self.buckets[index]))

    def finish(self) -> None:
        while self.under_way:
            self.under_way.pop(0)()

    def start_rest(self) -> None:
        while self.next < len(self.buckets):
            self.start_next()

    def end(self) -> None:
        self.start_rest()
        self.finish()
        self.begin()


class AllAtTheEnd(Queue):
    def start_complete(self) -> None:
        pass


class WithTheLastGradient(Queue):
    def start_complete(self) -> None:
        if not any(self.missing):
            self.start_rest()


class StartsOneOnly(Queue):
    def start_complete(self) -> None:
        if self.next < len(self.buckets) and self.missing[self.next] == 0:
            self.start_next()


class AllUnderWay(Queue):
    def start_next(self) -> None:
        self.start(self.next)
        self.next += 1

    def start_rest(self) -> None:
        while self.next < len(self.buckets):
            super().start_next()


class FinishesAtOnce(Queue):
    def start_complete(self) -> None:
        super().start_complete()
        self.finish()


class AsTheyComplete(Queue):
    def begin(self) -> None:
        super().begin()
        self.started: set[int] = set()

    def on_gradient(self, index: int, number: int, grad: Tensor) -> None:
        self.arrive(index, number, grad)
        if self.missing[index] == 0:
            self.finish()
            self.start(index)
            self.started.add(index)

    def start_rest(self) -> None:
        for index in set(range(len(self.buckets))) - self.started:
            self.finish()
            self.start(index)


class NeverStartsTheIncomplete(Queue):
    def start_rest(self) -> None:
        pass


class NeverFinishesTheLast(Queue):
    def end(self) -> None:
        self.start_rest()
        self.under_way.clear()
        self.begin()


class NeverBeginsAnew(Queue):
    def end(self) -> None:
        self.start_rest()
        self.finish()


class CountsOn(Queue):
    def end(self) -> None:
        self.start_rest()
        self.finish()
        self.next = 0


class ByTheFirstGradient(Queue):
    def on_gradient(self, index: int, number: int, grad: Tensor) -> None:
        self.arrive(index, number, grad)
        while self.next <= index:
            self.start_next()


class BeforeTheGradientIsIn(Queue):
    def on_gradient(self, index: int, number: int, grad: Tensor) -> None:
        self.missing[index] -= 1
        self.start_complete()
        self.buckets[index].add(number, grad)


class AllIntoTheLast(Queue):
    def hook(self) -> None:
        for index, bucket in enumerate(self.buckets):
            hand_over(bucket.params, lambda number, grad: self.on_gradient(index, number, grad))  # noqa: B023


class NeverAdds(Queue):
    def arrive(self, index: int, number: int, grad: Tensor) -> None:
        self.missing[index] -= 1


class KeepsGradients(Queue):
    def hook(self) -> None:
        for index, bucket in enumerate(self.buckets):
            for number, param in enumerate(bucket.params):
                param.register_post_accumulate_grad_hook(partial(self.on_param, index, number))

    def on_param(self, index: int, number: int, param: nn.Parameter) -> None:
        assert param.grad is not None
        self.on_gradient(index, number, param.grad)


class KeepsAList(Queue):
    def begin(self) -> None:
        super().begin()
        self.kept: list[Tensor] = []

    def arrive(self, index: int, number: int, grad: Tensor) -> None:
        super().arrive(index, number, grad)
        self.kept.append(grad)


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


def draw(rng: random.Random, number: int) -> Case:
    """Backwards in which every layer is used, and buckets fill in order; or in which two of them fill in the other.

    Or one in which some ranks leave some layers out, with buckets of one size: then a bucket that meets another is
    summed without a word, on every run alike.
    """
    world_size, layers, seed = draw_world_size(rng, number), rng.randint(4, 5), rng.getrandbits(32)
    dtype, widths, backwards = DTYPES[number % 2], rng.sample(range(3, 9), layers), 2
    per_bucket, unused, swapped = 2, {}, number == 4
    if number in (2, 5):
        widths, backwards = [rng.randint(3, 6)] * layers, 1
        unused = {rng.randrange(world_size): rng.randint(1, layers - 1)}
    elif number and not swapped:
        per_bucket = rng.choice((2, 3))  # with 3, layers and buckets do not end together

    def args(rank: int) -> tuple[list[int], list[int], int, bool, list[Tensor], bool]:
        torch.manual_seed(seed)
        used = [layer for layer in range(layers) if unused.get(rank) != layer]
        batches = [whole_numbers(3, 2, seed=seed + part, rank=100 * rank, dtype=dtype) for part in range(backwards)]
        return widths, used, per_bucket, swapped, batches, not unused and not swapped

    about = f"{ranks(world_size)}, {layers} layers, {per_bucket} parameters in a bucket"
    about += f", {backwards} backwards" * (backwards > 1) + ", a layer unused on one rank" * bool(unused)
    about += ", the second bucket complete before the first" * swapped
    return Case(world_size=world_size, args=args, about=about)


def shards_of_each_backward(
    solution: Solution,
    widths: list[int],
    used: list[int],
    per_bucket: int,
    swapped: bool,
    batches: list[Tensor],
    lag: bool,
) -> list[list[Tensor | None]]:
    """The grad shards after each backward.

    With `lag`, the last rank comes later to each layer: whoever waits for it too early, waits for ever. Not so where
    a rank lacks a gradient, or two buckets leave at once: then a right solution may wait as well.
    """
    backward, shards = 0, []

    def on_layer(layer: int) -> None:
        mark(f"In backward {backward}, before layer {layer}")
        if lag:
            last_rank_lags_behind(layer, len(widths))

    model = Ladder(widths, used, batches[0].dtype, on_layer)
    params = list(model.parameters())[::-1]
    buckets = [Bucket(params[begin : begin + per_bucket]) for begin in range(0, len(params), per_bucket)]
    if swapped:
        buckets[:2] = buckets[1::-1]
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
    variants={"with-sets": with_sets, "with-an-object": Queue.on},
    mistakes=[
        Mistake(
            id="all-at-the-end",
            solution=AllAtTheEnd.on,
            told="The shards are right, and every bucket waits until backward is over. By then the whole "
            "gradient is in memory, in your buckets.",
            action="Start a bucket as soon as its last gradient is in it.",
        ),
        Mistake(
            id="with-the-last-gradient",
            solution=WithTheLastGradient.on,
            told="All buckets are started when the last gradient has come. By then the whole gradient is in "
            "memory, in your buckets.",
            action="Look, at each gradient, whether the next bucket in line is complete.",
        ),
        Mistake(
            id="starts-one-only",
            solution=StartsOneOnly.on,
            told="One gradient can make several buckets go: the next in line, and those behind it that were complete "
            "and had to wait. You start one of them, and the others stay in memory.",
            action="Go on while the next bucket in line is complete: `while` in the place of `if`.",
        ),
        Mistake(
            id="all-under-way",
            solution=AllUnderWay.on,
            told="Buckets are started in time, and finished only after backward. Until then each keeps what it "
            "sends: together that is the whole gradient.",
            action="Before you start a bucket, finish the one that is under way.",
        ),
        Mistake(
            id="finishes-at-once",
            solution=FinishesAtOnce.on,
            told="A bucket is finished as soon as it is started, inside the hook. So backward stands still "
            "until every rank has come this far, each time.",
            action="Finish a bucket when the next one is started, and the last one after backward.",
        ),
        Mistake(
            id="as-they-complete",
            solution=AsTheyComplete.on,
            told="Buckets are started in the order in which they become complete. A rank that lacks a gradient "
            "completes them in another order, and then one rank's bucket meets another bucket of its peers.",
            action="Start a bucket only when all buckets before it are started.",
        ),
        Mistake(
            id="never-starts-the-incomplete",
            solution=NeverStartsTheIncomplete.on,
            told="A bucket that lacks a gradient on this rank is never started here, and the other ranks wait for it.",
            action="In `finish`, start whatever is not started yet: `start_reduction` brings zeros where nothing is.",
        ),
        Mistake(
            id="never-finishes-the-last",
            solution=NeverFinishesTheLast.on,
            told="The last bucket is still under way when your `finish` returns, and nobody waits for it: its "
            "average never reaches the shard.",
            action="In `finish`, finish it after the last start.",
        ),
        Mistake(
            id="never-begins-anew",
            solution=NeverBeginsAnew.on,
            told="In the second backward all buckets seem to be started already: nothing leaves.",
            action="At the end of `finish`, begin anew: nothing is started, and every gradient is missing.",
        ),
        Mistake(
            id="counts-on",
            solution=CountsOn.on,
            told="In the second backward, gradients of the first still count: no bucket becomes complete at the "
            "right moment.",
            action="Count anew at the end of `finish`.",
        ),
        Mistake(
            id="by-the-first-gradient",
            solution=ByTheFirstGradient.on,
            told="A bucket leaves when the first of its gradients is there. The others are not in it yet.",
            action="Start it when all of its gradients are there.",
        ),
        Mistake(
            id="before-the-gradient-is-in",
            solution=BeforeTheGradientIsIn.on,
            told="The gradient that completes a bucket is counted, and the bucket leaves, before it is put in.",
            action="Call `bucket.add(number, grad)` first.",
        ),
        Mistake(
            id="all-into-the-last",
            solution=AllIntoTheLast.on,
            told="Every gradient goes into the last bucket. A function that is defined in a loop sees the "
            "loop's variable as it is when it is called, and then the loop has ended.",
            action="Bind the value at definition: `functools.partial(on_gradient, index)`.",
        ),
        Mistake(
            id="never-adds",
            solution=NeverAdds.on,
            told="Buckets leave in time, and they are empty: the gradients are counted, and never put in.",
            action="Call `bucket.add(number, grad)` for each.",
        ),
        Mistake(
            id="keeps-gradients",
            solution=KeepsGradients.on,
            told="The parameters keep their gradients: the whole gradient stays in memory, and the next "
            "backward adds to it.",
            action="Use your `hand_over`.",
        ),
        Mistake(
            id="keeps-a-list",
            solution=KeepsAList.on,
            told="Buckets leave in time, and something of yours keeps each gradient after it was put in: until "
            "backward is over, the whole gradient is in memory beside the buckets.",
            action="Put it into its bucket, and keep nothing: count, and let the variable end with the hook.",
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
