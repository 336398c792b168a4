"""A run warns of asynchronous calls that nobody waited for; a strict run also of tensors that are used too early."""

import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from course_lib import CourseWarning, mark, zero
from tests.world.programs import rank


def never_waits() -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(2), async_op=True)


def forgets_a_send() -> None:
    if rank() == 0:
        dist.isend(torch.ones(2), 1)
    else:
        dist.recv(torch.ones(2), 0)


def forgets_the_ring() -> None:
    dist.isend(torch.ones(2), 1 - rank())
    dist.recv(torch.ones(2), 1 - rank())


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_deprecated_name_of_a_collective(local_world) -> None:
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


def waits_late() -> None:
    handles = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    dist.barrier()
    for handle in handles:
        handle.wait()


def hands_the_future_on():
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].tolist()).wait()


def asks_until_it_is_done() -> None:
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
def test_a_call_that_nobody_waits_for(local_world, program, beginning) -> None:
    with pytest.warns(CourseWarning, match="never waited") as caught:
        run = local_world(2).run(program)
    assert [str(one.message) for one in caught] == list(run.warnings)
    assert len(run.warnings) == 1 and re.sub(r"line \d+", "line _", run.warnings[0]).startswith(beginning)


def test_a_result_that_is_waited_for_in_any_way(local_world) -> None:
    programs = [waits_late, hands_the_future_on, asks_until_it_is_done]
    assert local_world(2).run(lambda: [program() for program in programs]).warnings == ()


def reads_too_early():
    x = torch.ones(2)
    handle = dist.all_reduce(x, async_op=True)
    total = x.sum()
    handle.wait()
    return total


def changes_what_it_sends() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    handle = dist.isend(x, 1 - rank())
    dist.recv(y, 1 - rank())
    x.zero_()
    handle.wait()


def receives_into_what_it_sends() -> None:
    x = torch.ones(2)
    sending, receiving = dist.isend(x, 1 - rank()), dist.irecv(x, 1 - rank())
    sending.wait()
    receiving.wait()


def steps_too_early() -> None:
    net = torch.nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2)).sum().backward()
    handle = dist.all_reduce(net.weight.grad, async_op=True)
    optimizer.step()
    handle.wait()


def reduces_again() -> None:
    x = torch.ones(2)
    handle = dist.all_reduce(x, async_op=True)
    dist.all_reduce(x)
    handle.wait()


def writes_an_out_argument() -> None:
    x = torch.ones(2)
    handle = dist.all_reduce(x, async_op=True)
    torch.add(torch.ones(2), 1, out=x)
    handle.wait()


def returns_a_gradient_in_flight() -> None:
    net, handles = torch.nn.Linear(2, 2), []

    def hook(grad):
        handles.append((dist.all_reduce(grad, async_op=True), grad))  # autograd copies what a hook has kept
        return grad

    net.weight.register_hook(hook)
    net(torch.ones(2)).sum().backward()
    handles[0][0].wait()


def branches_too_early() -> None:
    x = torch.ones(2)
    handle = dist.all_reduce(x, async_op=True)
    torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (x,))
    handle.wait()


def compiles_too_early() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiles_too_early(x):
        return x + 1

    x = torch.ones(2)
    handle = dist.all_reduce(x, async_op=True)
    compiles_too_early(x)
    handle.wait()


@pytest.mark.parametrize(
    ("program", "beginning"),
    [
        (writes_an_out_argument, "both ranks used a tensor of all_reduce #1 before its wait, at"),
        (returns_a_gradient_in_flight, "both ranks used a tensor of all_reduce #1 before its wait, at"),
        (reads_too_early, "both ranks used a tensor of all_reduce #1 before its wait, at"),
        (changes_what_it_sends, "both ranks used a tensor of send before its wait, at"),
        (receives_into_what_it_sends, "both ranks used a tensor of send before its wait, at"),
        (steps_too_early, "both ranks used a tensor of all_reduce #1 before its wait, at"),
        (reduces_again, "both ranks used a tensor of all_reduce #1 before its wait, at"),
        (branches_too_early, "both ranks used a tensor of all_reduce #1 before its wait, at"),
        (compiles_too_early, "both ranks used a tensor of all_reduce #1 before its wait, at"),
    ],
)
def test_a_strict_run_finds_tensors_that_are_used_before_the_wait(local_world, program, beginning) -> None:
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


def reads_what_only_others_receive() -> None:
    x = torch.ones(2)
    handle = dist.broadcast(x, 0, async_op=True)
    if rank() == 0:
        x.sum()
    handle.wait()


def reads_what_is_being_reduced_and_scattered() -> None:
    for _ in range(5):  # gloo works on the tensors, on the thread of the rank that comes last
        x = torch.ones(4)
        handle = dist.reduce_scatter_single(torch.empty(2), x, async_op=True)
        x.sum()
        handle.wait()


def averages_in_hooks() -> None:
    torch.manual_seed(0)
    net, handles = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)), []
    for param in net.parameters():
        param.register_post_accumulate_grad_hook(lambda p: handles.append(dist.all_reduce(p.grad, async_op=True)))
    net(torch.ones(2)).sum().backward()
    for handle in handles:
        handle.wait()
    torch.optim.Adam(net.parameters()).step()


def trains_with_zero(stage) -> None:
    engine = stage(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)), torch.optim.Adam, lr=0.1)
    for _ in range(2):
        engine(torch.ones(1, 2)).sum().backward()
        engine.step()
        engine.zero_grad()


def trains_with_ddp() -> None:
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def trains_with_fsdp() -> None:
    net = fully_shard(torch.nn.Linear(2, 2))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def reuses_the_memory_of_what_it_sent() -> None:
    handles = [dist.isend(torch.ones(1000), 1 - rank())]
    received = torch.empty(1000)
    dist.recv(received, 1 - rank())
    dist.barrier()
    for _ in range(20):
        torch.empty(1000).fill_(2)
    handles[0].wait()
    assert received.sum() == 1000


RIGHT = [
    looks_beside,
    reuses_the_memory_of_what_it_sent,
    waits_late,
    reads_what_only_others_receive,
    reads_what_is_being_reduced_and_scattered,
    averages_in_hooks,
    *(partial(trains_with_zero, stage) for stage in (zero.Stage1, zero.Stage2, zero.Stage3)),
    trains_with_ddp,
    trains_with_fsdp,
]


def test_a_strict_run_leaves_right_programs_alone(local_world) -> None:
    assert local_world(2, strict=True).run(lambda: [program() for program in RIGHT]).warnings == ()


def test_a_strict_run_keeps_no_tensor_that_was_sent_and_waited_for(local_world) -> None:
    def program() -> None:
        sends = [dist.isend(torch.ones(1000), 1 - rank()) for _ in range(5)]
        for _ in range(5):
            dist.recv(torch.empty(1000), 1 - rank())
        mark("sent")
        for work in sends:
            work.wait()
        mark("waited")

    for strict in (True, False):
        for report in local_world(2, strict=strict, measure=True).run(program).memory:
            assert [report.marks[label].current_bytes for label in ("sent", "waited")] == [5 * 4000, 0]
