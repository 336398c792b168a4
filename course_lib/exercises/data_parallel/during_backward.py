"""Known solutions of the exercise `average_during_backward`: the mistakes, then right ones written differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..declare import Solution
from .start_averaging import start_averaging

Buckets = list[list[nn.Parameter]]
ShouldSync = Callable[[], bool]
Finish = Callable[[], None]
Arrived = set[nn.Parameter]


def hook(buckets: Buckets, on_gradient: Callable[[int, nn.Parameter], None]) -> None:
    """Call `on_gradient` with a gradient's bucket and parameter, whenever there is one."""
    for index, bucket in enumerate(buckets):
        for param in bucket:
            param.register_post_accumulate_grad_hook(lambda param, index=index: on_gradient(index, param))


def finish_all(finishes: list[Finish]) -> None:
    for finish_bucket in finishes:
        finish_bucket()
    finishes.clear()


def all_at_the_end(buckets: Buckets, should_sync: ShouldSync) -> Finish:
    return lambda: finish_all([start_averaging(bucket) for bucket in buckets])


def next_complete(buckets: Buckets, arrived: Arrived, started: int) -> bool:
    """Whether the next bucket has all its gradients."""
    return started < len(buckets) and arrived.issuperset(buckets[started])


def reducing(
    ready: Callable[[Buckets, Arrived, int], bool] = next_complete,
    start: Callable[[list[nn.Parameter]], Finish] = start_averaging,
    register: Callable[[Buckets, Callable[[int, nn.Parameter], None]], None] = hook,
    counts_quiet: bool = False,
    starts_the_rest: bool = True,
    forgets: tuple[str, ...] = ("arrived", "started"),
) -> Solution:
    """The reduction during backward, with a part of it done otherwise.

    Args:
        ready: from the buckets, the parameters that have their gradients, and how many buckets were started: whether
            the next one is.
        start: starts a bucket.
        register: has its second argument called at each gradient.
        counts_quiet: whether gradients of a backward without communication count as arrived.
        starts_the_rest: whether `finish` starts the buckets that were not complete.
        forgets: what `finish` sets back.
    """

    def average_during_backward(buckets: Buckets, should_sync: ShouldSync) -> Finish:
        arrived: Arrived = set()
        finishes: list[Finish] = []

        def on_gradient(index: int, param: nn.Parameter) -> None:
            if should_sync() or counts_quiet:
                arrived.add(param)
            while should_sync() and ready(buckets, arrived, len(finishes)):
                finishes.append(start(buckets[len(finishes)]))

        register(buckets, on_gradient)

        def finish() -> None:
            if starts_the_rest:
                finishes.extend(start(bucket) for bucket in buckets[len(finishes) :])
            for finish_bucket in finishes:
                finish_bucket()
            if "arrived" in forgets:
                arrived.clear()
            if "started" in forgets:
                finishes.clear()

        return finish

    return average_during_backward


def all_have_arrived(buckets: Buckets, arrived: Arrived, started: int) -> bool:
    return started < len(buckets) and len(arrived) == sum(map(len, buckets))


def last_listed_has_arrived(buckets: Buckets, arrived: Arrived, started: int) -> bool:
    return started < len(buckets) and buckets[started][-1] in arrived


def start_and_finish(bucket: list[nn.Parameter]) -> Finish:
    start_averaging(bucket)()
    return lambda: None


def hook_too_early(buckets: Buckets, on_gradient: Callable[[int, nn.Parameter], None]) -> None:
    for index, bucket in enumerate(buckets):
        for param in bucket:
            param.register_hook(lambda _, index=index, param=param: on_gradient(index, param))


def as_they_complete(buckets: Buckets, should_sync: ShouldSync) -> Finish:
    missing = [len(bucket) for bucket in buckets]
    finishes: list[Finish] = []

    def on_gradient(index: int, param: nn.Parameter) -> None:
        if should_sync():
            missing[index] -= 1
            if missing[index] == 0:
                finishes.append(start_averaging(buckets[index]))

    hook(buckets, on_gradient)

    def finish() -> None:
        finishes.extend(start_averaging(bucket) for index, bucket in enumerate(buckets) if missing[index])
        finish_all(finishes)
        missing[:] = [len(bucket) for bucket in buckets]

    return finish


def reduces_in_the_hook(buckets: Buckets, should_sync: ShouldSync) -> Finish:
    def on_gradient(index: int, param: nn.Parameter) -> None:
        if should_sync():
            assert param.grad is not None
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()

    hook(buckets, on_gradient)
    return lambda: None


def one_call_for_each(buckets: Buckets, should_sync: ShouldSync) -> Finish:
    finishes: list[Finish] = []

    def on_gradient(index: int, param: nn.Parameter) -> None:
        if should_sync():
            finishes.append(start_averaging([param]))

    hook(buckets, on_gradient)
    return lambda: finish_all(finishes)


def always_syncs(buckets: Buckets, should_sync: ShouldSync) -> Finish:
    return with_counters(buckets, lambda: True)


def all_count_for_the_last(buckets: Buckets, should_sync: ShouldSync) -> Finish:
    missing = [len(bucket) for bucket in buckets]
    started: dict[int, Finish] = {}
    for index, bucket in enumerate(buckets):

        def on_gradient(param: nn.Parameter) -> None:
            if should_sync():
                missing[index] -= 1  # noqa: B023 (this is the mistake)
                if missing[index] == 0:  # noqa: B023
                    started[index] = start_averaging(buckets[index])  # noqa: B023

        for param in bucket:
            param.register_post_accumulate_grad_hook(on_gradient)

    def finish() -> None:
        for index, bucket in enumerate(buckets):
            if index not in started:
                started[index] = start_averaging(bucket)
        for finish_bucket in started.values():
            finish_bucket()
        started.clear()
        missing[:] = [len(bucket) for bucket in buckets]

    return finish


def by_the_first_gradient(buckets: Buckets, should_sync: ShouldSync) -> Finish:
    started: dict[int, Finish] = {}

    def on_gradient(index: int, param: nn.Parameter) -> None:
        if should_sync() and index not in started:
            started[index] = start_averaging(buckets[index])

    hook(buckets, on_gradient)

    def finish() -> None:
        for index, bucket in enumerate(buckets):
            if index not in started:
                started[index] = start_averaging(bucket)
        for finish_bucket in started.values():
            finish_bucket()
        started.clear()

    return finish


def with_counters(buckets: Buckets, should_sync: ShouldSync) -> Finish:
    missing = [len(bucket) for bucket in buckets]
    finishes: list[Finish] = []

    def start_complete(final: bool) -> None:
        for bucket, count in list(zip(buckets, missing, strict=True))[len(finishes) :]:
            if count and not final:
                return
            finishes.append(start_averaging(bucket))

    def on_gradient(index: int, param: nn.Parameter) -> None:
        if should_sync():
            missing[index] -= 1
            start_complete(final=False)

    hook(buckets, on_gradient)

    def finish() -> None:
        start_complete(final=True)
        finish_all(finishes)
        missing[:] = [len(bucket) for bucket in buckets]

    return finish


def with_an_object(buckets: Buckets, should_sync: ShouldSync) -> Finish:
    class Reducer:
        def __init__(self) -> None:
            self.begin()
            for bucket in buckets:
                for param in bucket:
                    param.register_post_accumulate_grad_hook(self.take)

        def begin(self) -> None:
            self.waiting = [{id(param) for param in bucket} for bucket in buckets]
            self.works: list[tuple[list[nn.Parameter], Tensor, Any]] = []

        def take(self, param: Tensor) -> None:
            if not should_sync():
                return
            for ids in self.waiting:
                ids.discard(id(param))
            while len(self.works) < len(buckets) and not self.waiting[len(self.works)]:
                self.reduce()

        def reduce(self) -> None:
            bucket = buckets[len(self.works)]
            grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in bucket]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            self.works.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

        def finish(self) -> None:
            while len(self.works) < len(buckets):
                self.reduce()
            for bucket, flat, work in self.works:
                work.wait()
                for param, piece in zip(bucket, flat.split([param.numel() for param in bucket]), strict=True):
                    param.grad = piece.view(param.shape) / dist.get_world_size()
            self.begin()

    return Reducer().finish
