"""A run warns of asynchronous calls that nobody waited for; a strict run also of tensors that are used too early."""

import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

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


def forgets_the_ring():
    dist.isend(torch.ones(2), 1 - rank())
    dist.recv(torch.ones(2), 1 - rank())


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_deprecated_name_of_a_collective(local_world):
    def program():
        out = torch.empty(4)
        handle = dist.all_gather_into_tensor(out, torch.ones(2), async_op=True)
        out.add_(1)
        return handle is None

    with pytest.warns(CourseWarning) as caught:
        local_world(2, strict=True).run(program)
    said = [str(one.message).partition(" at ")[0] for one in caught if one.category is CourseWarning]
    assert said == [
        "both ranks never waited for all_gather_single #1",
        "both ranks used a tensor of all_gather_single #1 before its wait,",
    ]


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
        (forgets_the_ring, "both ranks never waited for send at test_warnings.py line _, in forgets_the_ring:"),
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


def reads_too_early():
    x = torch.ones(2)
    handle = dist.all_reduce(x, async_op=True)
    total = x.sum()
    handle.wait()
    return total


def changes_what_it_sends():
    x, y = torch.ones(2), torch.zeros(2)
    handle = dist.isend(x, 1 - rank())
    dist.recv(y, 1 - rank())
    x.zero_()
    handle.wait()


def receives_into_what_it_sends():
    x = torch.ones(2)
    sending, receiving = dist.isend(x, 1 - rank()), dist.irecv(x, 1 - rank())
    sending.wait()
    receiving.wait()


def steps_too_early():
    net = torch.nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2)).sum().backward()
    handle = dist.all_reduce(net.weight.grad, async_op=True)
    optimizer.step()
    handle.wait()


def reduces_again():
    x = torch.ones(2)
    handle = dist.all_reduce(x, async_op=True)
    dist.all_reduce(x)
    handle.wait()


@pytest.mark.parametrize(
    ("program", "beginning"),
    [
        (reads_too_early, "both ranks used a tensor of all_reduce #1 before its wait, at"),
        (changes_what_it_sends, "both ranks used a tensor of send before its wait, at"),
        (receives_into_what_it_sends, "both ranks used a tensor of send before its wait, at"),
        (steps_too_early, "both ranks used a tensor of all_reduce #1 before its wait, at"),
        (reduces_again, "both ranks used a tensor of all_reduce #1 before its wait, at"),
    ],
)
def test_a_strict_run_finds_tensors_that_are_used_before_the_wait(local_world, program, beginning):
    with pytest.warns(CourseWarning, match="before its wait"):
        run = local_world(2, strict=True).run(program)
    assert run.warnings[0].startswith(beginning) and program.__name__ in run.warnings[0]


def looks_beside():
    flat, mine = torch.ones(4), torch.ones(2)
    handle = dist.all_reduce(flat[:2], async_op=True)
    flat.view(2, 2)[1] += torch.zeros_like(flat)[:2]
    gathered = dist.all_gather_single(torch.empty(4), mine, async_op=True)
    other = mine.sum()
    handle.wait()
    gathered.wait()
    return flat.sum() + other


def trains_with_ddp():
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def trains_with_fsdp():
    net = fully_shard(torch.nn.Linear(2, 2))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("program", [looks_beside, waits_late, trains_with_ddp, trains_with_fsdp])
def test_a_strict_run_leaves_right_programs_alone(local_world, program):
    assert local_world(2, strict=True).run(program).warnings == ()
