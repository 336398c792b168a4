"""What each rank did and when: by hand-made calls, and in real runs, with one rank that comes late."""

import re
import time
from math import inf

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import World
from course_lib.meter import CommCall, SourceLine, Timeline, slowest

LATE = 0.2  # seconds: more than a busy machine holds up the rank that is punctual


def call(issued, matched, done, waited_from=inf, *, nbytes=100, op="all_reduce"):
    """A call of rank 0 on two ranks: an all-reduce sends as many bytes as it has."""
    return CommCall(
        variant=op,
        rank=0,
        ranks=(0, 1),
        group_name="0",
        dtype=torch.float32,
        total_bytes=nbytes,
        line=SourceLine(filename="train.py", line=7, function="step"),
        issued=issued,
        matched=matched,
        done=done,
        waited_from=waited_from,
    )


def timeline(*calls, start=0.0, end=10.0):
    return Timeline(rank=0, start=start, end=end, calls=calls)


def spans(intervals):
    return [(interval.start, interval.end) for interval in intervals]


# By hand


def test_a_rank_computes_when_it_does_not_wait() -> None:
    t = timeline(call(2, 3, 4, 2), call(6, 6, 9, 7))
    assert spans(t.waited) == [(2, 4), (7, 9)]
    assert spans(t.computed) == [(0, 2), (4, 7), (9, 10)]


def test_waiting_for_a_peer_and_for_bytes_are_told_apart() -> None:
    t = timeline(call(2, 3, 4, 2), call(5, 5, 9, 7))
    assert spans(t.waited_for_peers) == [(2, 3)]
    assert spans(t.waited_for_bytes) == [(3, 4), (7, 9)]


def test_waiting_for_several_calls_at_once_is_counted_once() -> None:
    t = timeline(call(1, 2, 6, 5), call(1, 3, 8, 5), call(1, 3, 7, 5))
    assert spans(t.waited) == [(5, 6), (6, 7), (7, 8)]
    assert sum(interval.seconds for interval in t.computed) == 7


def test_what_ends_after_its_rank_left_is_cut_there() -> None:
    t = timeline(call(1, 9, inf))
    assert spans(t.in_flight) == [(9, 10)] and t.waited == () and spans(t.computed) == [(0, 10)]


@pytest.mark.parametrize(
    ("calls", "overlap"),
    [
        ([call(0, 2, 6, 0)], 0.0),  # waited for all along
        ([call(0, 2, 6)], 1.0),  # never waited for
        ([call(0, 2, 6, 5)], 0.75),
        ([call(0, 2, 6, 0), call(0, 6, 8, nbytes=300)], 0.75),  # by bytes, not by seconds
        ([call(0, 2, 6, nbytes=0, op="barrier")], None),
        ([], None),
    ],
)
def test_overlap_is_the_part_of_the_bytes_that_moved_while_computing(calls, overlap) -> None:
    assert timeline(*calls).overlap == overlap


def test_waiting_for_another_call_does_not_hide_a_flight() -> None:
    assert timeline(call(0, 2, 6), call(3, 4, 6, 4, nbytes=0, op="barrier")).overlap == 0.5


def test_the_text_tells_where_the_time_went() -> None:
    assert str(timeline(call(2, 3, 4, 2), end=0.005)).startswith("rank 0, 5.0 ms\n  computed              5.0 ms\n")
    assert str(timeline(call(2, 3, 4, 3.5))).endswith("  50% of what it sent moved while it computed")


# In runs


def test_peers_wait_for_a_late_rank() -> None:
    def program() -> None:
        if dist.get_rank() == 1:
            time.sleep(LATE)
        dist.all_reduce(torch.ones(4))

    punctual, late = World(2).run(program).timeline
    assert punctual.waited_for_peers[0].seconds >= late.calls[0].issued - punctual.calls[0].issued > 0
    assert punctual.waited_for_peers[0].call.line.source == "dist.all_reduce(torch.ones(4))"
    assert sum(interval.seconds for interval in late.computed) > 0.8 * LATE
    assert punctual.overlap == late.overlap == 0


def test_a_collective_that_runs_while_its_rank_computes_is_hidden() -> None:
    def program() -> None:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        dist.barrier()
        time.sleep(LATE)  # computing, as far as the network is concerned
        work.wait()

    for timeline in World(2).run(program).timeline:
        all_reduce = next(call for call in timeline.calls if call.op == "all_reduce")
        assert not [wait for wait in timeline.waited if wait.call is all_reduce]


def test_a_work_that_is_waited_for_at_once_is_not_hidden() -> None:
    def program() -> None:
        if dist.get_rank() == 1:
            time.sleep(LATE)
        dist.all_reduce(torch.ones(4), async_op=True).wait()

    punctual, late = World(2).run(program).timeline
    (wait,) = punctual.waited
    assert wait.seconds >= late.calls[0].issued - wait.call.waited_from > 0 and punctual.overlap < 0.5


def test_the_wait_of_ddp_at_the_end_of_backward_is_seen() -> None:
    def program() -> None:
        net = DistributedDataParallel(nn.Linear(3, 3))
        loss = net(torch.ones(1, 3)).sum()
        if dist.get_rank() == 1:
            time.sleep(LATE)
        loss.backward()

    punctual, late = World(2).run(program).timeline
    wait = next(wait for wait in punctual.waited_for_peers if wait.call.op == "all_reduce")
    came = next(call.issued for call in late.calls if call.op == "all_reduce")
    assert wait.seconds >= came - wait.call.waited_from > 0
    assert wait.call.line.source == "loss.backward()"


def test_a_bucket_of_ddp_that_moves_while_backward_goes_on_is_hidden() -> None:
    def program() -> None:
        net = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
        late = 3 * LATE * (1 + dist.get_rank())
        net[0].weight.register_hook(lambda grad: time.sleep(late))  # the other layer's bucket is on its way by then
        ddp = DistributedDataParallel(net, bucket_cap_mb=1)
        for _ in range(2):  # the first step has one bucket for all
            ddp(torch.ones(1, 600)).sum().backward()

    early, late = World(2).run(program).timeline
    for timeline in (early, late):
        _, hidden, _ = (call for call in timeline.calls if call.op == "all_reduce")
        assert hidden not in [wait.call for wait in timeline.waited]
    assert early.waited_for_peers[-1].call is early.calls[-1]


def test_a_call_in_backward_that_nobody_waits_for_there_leaves_the_rank_computing() -> None:
    def program() -> None:
        works, x = [], torch.ones(3, requires_grad=True)
        x.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))
        if dist.get_rank() == 0:
            x.sum().backward()
            time.sleep(2 * LATE)
        else:
            time.sleep(LATE / 2)
            x.sum().backward()
        works[0].wait()

    early, _ = World(2).run(program).timeline
    assert early.waited_for_peers == ()
    assert sum(interval.seconds for interval in early.computed) > 1.6 * LATE


def test_the_broadcasts_by_which_ddp_sets_up_are_waited_for() -> None:
    timeline = World(2).run(lambda: DistributedDataParallel(nn.Linear(3, 3)).reducer is None).timeline[0]
    broadcasts = [call for call in timeline.calls if call.op == "broadcast"]
    assert broadcasts and all(call.waited_from == call.issued for call in broadcasts)


def test_of_many_slow_ranks_the_slowest_are_named() -> None:
    def ranked(rank: int, issued: float) -> Timeline:
        return Timeline(rank=rank, start=0.0, end=10.0, calls=[call(issued, 9, 9, issued)])

    found = slowest([ranked(0, 1), *(ranked(rank, 5 + rank / 10) for rank in range(1, 8))])
    assert re.findall(r"rank (\d) computed", found) == ["4", "5", "6", "7", "0"]
    assert "; and 3 more that computed nearly as long. Fastest: rank 0" in found
