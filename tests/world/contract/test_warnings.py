"""A run warns of asynchronous calls that nobody waited for, once for each line, and of no others."""

import re

import pytest
import torch
import torch.distributed as dist

from course_lib import CourseWarning
from tests.world.programs import rank


def never_waits():
    for _ in range(3):
        dist.all_reduce(torch.ones(2), async_op=True)


def forgets_a_send():
    if rank() == 0:
        dist.isend(torch.ones(2), 1)
    else:
        dist.recv(torch.ones(2), 0)


def waits_late():
    handles = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    dist.barrier()
    for handle in handles:
        handle.wait()


def hands_the_future_on():
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].tolist()).wait()


def asks_until_it_is_done():
    handle = dist.all_reduce(torch.ones(2), async_op=True)
    while not handle.is_completed():
        pass


@pytest.mark.parametrize(
    ("program", "beginning"),
    [
        (never_waits, "both ranks never waited for all_reduce #1 and 2 more at test_warnings.py line _, in never"),
        (forgets_a_send, "rank 0 never waited for send to rank 1 at test_warnings.py line _, in forgets_a_send:"),
    ],
)
def test_a_call_that_nobody_waits_for(world, program, beginning):
    with pytest.warns(CourseWarning, match="never waited") as caught:
        run = world(2).run(program)
    assert [str(one.message) for one in caught] == list(run.warnings)
    assert len(run.warnings) == 1 and re.sub(r"line \d+", "line _", run.warnings[0]).startswith(beginning)


@pytest.mark.parametrize("program", [waits_late, hands_the_future_on, asks_until_it_is_done])
def test_a_result_that_is_waited_for_in_any_way(world, program):
    assert world(2).run(program).warnings == ()
