"""A run leaves no thread, process, open file or socket behind, whatever happened in it, and does not touch the next."""

import gc
import os
import sys
import threading
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib import RankError
from tests.world.programs import rank, total


def train_with_ddp() -> None:
    net = DistributedDataParallel(torch.nn.Linear(2, 2))
    net(torch.ones(1, 2)).sum().backward()


def reduce_in_a_subgroup() -> None:
    group = dist.new_group([0, 1])
    if rank() < 2:
        dist.all_reduce(torch.ones(2), group=group)


def raise_on_one_rank() -> None:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    if rank() == 1:
        raise ValueError
    work.wait()
    dist.barrier()


def disagree() -> None:
    dist.all_reduce(torch.ones(1 + rank()))


def wait_for_each_other() -> None:
    dist.recv(torch.empty(1), (rank() + 1) % 3)


def return_early() -> None:
    if rank():
        dist.barrier()


def exit_early() -> None:
    if rank() == 1:
        sys.exit(3)
    dist.barrier()


def call_while_stopped() -> None:
    if rank() == 1:
        raise ValueError
    try:
        dist.barrier()
    finally:
        dist.all_reduce(torch.ones(2), async_op=True)


GOOD = [train_with_ddp, reduce_in_a_subgroup]
BAD = [raise_on_one_rank, disagree, wait_for_each_other, return_early, exit_early, call_while_stopped]


def all_of_them(world) -> None:
    for program in GOOD:
        world.run(program)
    for program in BAD:
        with pytest.raises(RankError) as caught:
            world.run(program)
        assert caught.value.kind != "timeout"
        assert list(world.run(total)) == [3.0] * 3


def threads_of_groups() -> int:
    """The number of this process's threads that run gloo's collectives, two for each group."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended
            names.append((task / "comm").read_text().strip())
    return names.count("pt_gloo_runloop")


def open_things() -> tuple[int, ...]:
    gc.collect()
    this = psutil.Process()
    sockets, children = len(this.net_connections()), len(this.children(recursive=True))
    groups = sum(issubclass(type(thing), dist.ProcessGroup) for thing in gc.get_objects())
    return threading.active_count(), threads_of_groups(), groups, this.num_fds(), sockets, children


def everywhere(world) -> list[tuple[int, ...]]:
    """Counts of what is open in the kernel, and on each rank."""
    return [open_things(), *world.run(one_after_the_other)]


def one_after_the_other() -> tuple[int, ...]:
    """Counts of what is open on this rank, taken while no other rank opens or closes anything."""
    for counting in range(dist.get_world_size()):
        dist.barrier()
        if rank() == counting:
            counts = open_things()
    dist.barrier()
    return counts


def more_than(before, after) -> list[tuple[int, int]]:
    """The counts that have grown."""
    counts = zip(chain(*before), chain(*after), strict=True)
    return [(then, now) for then, now in counts if now > then]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc, which this system lacks")
def test_nothing_is_left_open_in_the_kernel_or_on_a_rank(world) -> None:
    three = world(3, timeout=30)
    all_of_them(three)  # what torch opens once and keeps
    before = everywhere(three)
    all_of_them(three)
    deadline = time.monotonic() + 60  # for a client of a cluster, and a busy machine
    while (more := more_than(before, everywhere(three))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not more


def test_the_kernel_keeps_its_own_groups_settings_and_threads(world) -> None:
    def settings():
        hooks = sys.excepthook, threading.excepthook
        return hooks, torch.get_default_dtype(), torch.get_num_threads(), dist.is_initialized()

    def change():
        threading.excepthook = print
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(7)
        os.environ["LEFT_BY_A_RANK"] = "1"
        return dist.is_initialized()

    before, stream = settings(), torch.get_rng_state()
    assert list(world(2).run(change)) == [True, True]
    assert settings() == before and "LEFT_BY_A_RANK" not in os.environ
    assert torch.equal(torch.get_rng_state(), stream)


def test_the_next_run_has_the_default_settings(world) -> None:
    def change():
        before = torch.get_default_dtype(), os.environ.get("LEFT_BY_A_RANK")
        dist.barrier()
        torch.set_default_dtype(torch.float64)
        os.environ["LEFT_BY_A_RANK"] = "1"
        return before

    two = world(2)
    assert [list(two.run(change)) for _ in range(2)] == [[(torch.float32, None)] * 2] * 2


def test_the_next_run_computes_gradients_again(process_world) -> None:
    two = process_world(2)
    try:
        two.run(torch.set_grad_enabled, False)
        assert list(two.run(torch.is_grad_enabled)) == [True, True]
    finally:
        two.run(torch.set_grad_enabled, True)


def test_a_run_that_destroys_the_default_group_leaves_the_next_one_its_own(world) -> None:
    assert list(world(2).run(dist.destroy_process_group)) == [None, None]
    assert list(world(2).run(dist.get_world_size)) == [2, 2]
