"""An exercise whose rules look at the bytes that ranks hold."""

from collections import deque
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import World, mark
from course_lib.exercises import Case, Exercise, get, holds_no_more
from course_lib.lessons.zero2.data import Bucket
from course_lib.lessons.zero2.hand_over import hand_over
from course_lib.lessons.zero2.start_reduction import start_reduction


def written_otherwise(x: torch.Tensor) -> torch.Tensor:
    return x.view(dist.get_world_size(), -1)[dist.get_rank()] + 0


def kept(solution, numel: int) -> torch.Tensor:
    part = solution(torch.arange(numel, dtype=torch.float32))
    mark("with its part")
    return part


SHARD = Exercise(
    "sample.shard",
    title="Shard",
    task="Return this rank's part.",
    draw=lambda rng, number: Case(world_size=(4, 2)[number % 2], args=lambda rank: (80,), what="80 elements"),
    trial=kept,
    measured=True,
    rules=[holds_no_more("other", "with its part")],
    hints="`clone`",
    explanation="A copy has memory of its own.",
)


@SHARD
def shard(x: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of `x`, and keep nothing of the rest."""
    return x.chunk(dist.get_world_size())[dist.get_rank()].clone()


SHARD.edit("view", {".clone()": ""}, "A view keeps the whole. Next: Copy your part.")


def test_who_lets_go_of_the_rest_passes() -> None:
    assert SHARD.check(shard).status == SHARD.check(written_otherwise).status == "passed"


def test_who_holds_more_than_the_reference_is_told_how_much_on_which_rank_and_why() -> None:
    def keeps_a_window(x):
        whole = x
        return whole[dist.get_rank() * len(whole) // dist.get_world_size() :][: len(whole) // dist.get_world_size()]

    verdict = SHARD.check(keeps_a_window)
    (finding,) = verdict.findings

    assert (verdict.status, verdict.mistake) == ("failed", "view")
    assert finding.observed == "rank 0 holds 320 bytes of other memory, with its part; 160 suffice."
    assert [(row.expected, row.yours) for row in finding.table] == [("at most 160 bytes", "320 bytes")] * 2


def test_a_rank_that_holds_no_more_than_it_may_is_not_marked() -> None:
    def keeps_a_view_on_rank_1(x):
        part = x.chunk(dist.get_world_size())[dist.get_rank()]
        return part if dist.get_rank() == 1 else part.clone()

    (finding,) = SHARD.check(keeps_a_view_on_rank_1).findings
    assert str(finding).split("\n")[1:4] == [
        "    rank  expected           yours",
        "    0     at most 160 bytes  160 bytes",
        "  ✗ 1     at most 160 bytes  320 bytes",
    ]


def test_the_reference_of_stage_2_holds_each_gradient_shard_once() -> None:
    """When the last of eight equal buckets is sent, seven shards have arrived, and one is on its way."""
    layers = 8

    def backward() -> int:
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(layers)])
        buckets = [Bucket(list(layer.parameters())) for layer in reversed(model)]
        finish = get("zero2.reduce_during_backward").reference(buckets)
        for param in model[0].parameters():
            param.register_post_accumulate_grad_hook(lambda param: mark("sent"))
        model(torch.ones(1, 64)).sum().backward()
        finish()
        return buckets[0].param_shard.nbytes

    run = World(2).run(backward)
    held = run.memory[0].marks["sent"].by_category
    shard = run[0]
    flat_grad = 2 * shard

    assert held["gradients"] == (layers - 1) * shard
    assert held["communication"] + held["other"] < flat_grad + 2 * shard


@pytest.mark.parametrize("at_most", [2, 3])
def test_too_many_buckets_on_their_way_are_named_without_saying_when_they_are_finished(at_most: int) -> None:
    def reduce_in_a_queue(buckets):
        arrived, started, under_way = [0] * len(buckets), 0, deque()

        def start_next():
            nonlocal started
            if len(under_way) == at_most:
                under_way.popleft()()
            under_way.append(start_reduction(buckets[started]))
            started += 1

        def on_gradient(index, number, grad):
            buckets[index].add(number, grad)
            arrived[index] += 1
            while started < len(buckets) and arrived[started] == len(buckets[started].params):
                start_next()

        def finish():
            nonlocal started
            while started < len(buckets):
                start_next()
            while under_way:
                under_way.popleft()()
            started, arrived[:] = 0, [0] * len(buckets)

        for index, bucket in enumerate(buckets):
            hand_over(bucket.params, partial(on_gradient, index))
        return finish

    verdict = get("zero2.reduce_during_backward").check(reduce_in_a_queue)

    assert verdict.mistake in ("two-under-way", "three-under-way")
    assert "More than one bucket is being sent at a time" in str(verdict)
