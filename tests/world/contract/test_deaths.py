"""A rank whose process dies is reported at once, with its line, and gets a new process; the others keep theirs."""

import ctypes
import os
import signal
import sys
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.world.programs import come_to_their_waits, failure, lines, rank


def remember() -> None:
    sys.modules["math"].left_by_a_rank = rank()


def remembered() -> int | None:
    return getattr(sys.modules["math"], "left_by_a_rank", None)


@pytest.fixture
def remembering(process_world):
    """Makes a world of processes that remember their ranks."""

    def make(world_size):
        world = process_world(world_size, timeout=30)
        world.run(remember)
        return world

    return make


@pytest.mark.parametrize(
    ("die", "told", "advice"),
    [
        (lambda: os._exit(3), "its process left through os._exit(3)", "look at what that rank did last"),
        (
            lambda: os.execv(sys.executable, ["python", "-c", ""]),
            "through os._exit(0), or as a different program",
            "use `return`",
        ),
        (lambda: os._exit(255), "or the process that starts ranks was killed", "run the cell again"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "its process was killed (SIGKILL)", "memory ran out"),
        (lambda: ctypes.string_at(0), "memory that is not its own (SIGSEGV, a segmentation fault)", "native code"),
        (lambda: os.abort(), "gave up in native code (SIGABRT)", "look at what that rank did last"),
    ],
)
def test_a_rank_that_dies_is_replaced_and_the_others_keep_their_state(remembering, die, told, advice) -> None:
    def program() -> None:
        if rank() == 1:
            die()
        dist.barrier()

    world = remembering(3)
    error = failure(world, program)
    assert (error.kind, error.rank) == ("died", 1)
    assert lines(error)[0].startswith("rank 1 of 3 died: ") and told in lines(error)[0]
    assert "  ranks 0, 2 waited in barrier #1 at " in str(error) and advice in str(error)
    assert "Note: rank 1 got a new process." in str(error) and "the others kept theirs" in str(error)
    assert list(world.run(remembered)) == [0, None, 2]


def test_a_rank_that_only_raises_keeps_its_process(remembering) -> None:
    def program() -> None:
        if rank() == 2:
            raise ValueError
        dist.all_reduce(torch.ones(2))

    world = remembering(4)
    assert "new process" not in str(failure(world, program))
    assert list(world.run(remembered)) == [0, 1, 2, 3]


def test_a_crash_is_reported_with_its_line(process_world) -> None:
    def program() -> None:
        ctypes.string_at(0)

    error = failure(process_world(1), program)
    assert lines(error)[1].startswith("  rank 0 died at test_deaths.py line ")
    assert lines(error)[1].endswith("in program:  ctypes.string_at(0)")


def test_a_rank_that_dies_in_the_middle_of_a_transfer(process_world) -> None:
    def program() -> None:
        if rank() == 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            dist.all_reduce(torch.ones(1_000_000))

    error = failure(process_world(3), program)
    assert (error.kind, error.rank) == ("died", 1)


def test_a_rank_that_dies_where_it_waits_stays_dead_when_the_others_come(remembering) -> None:
    def program() -> None:
        pids = [None] * 3
        dist.all_gather_object(pids, os.getpid())
        if rank() == 0:
            come_to_their_waits()
            os.kill(pids[1], signal.SIGKILL)
            while psutil.pid_exists(pids[1]):
                time.sleep(0.01)
            time.sleep(0.05)
        dist.barrier()

    world = remembering(3)
    error = failure(world, program)
    assert (error.kind, error.rank) == ("died", 1)
    assert [report.state for report in error.ranks] == ["waiting", "died", "waiting"]
    assert "  rank 1 died in barrier #1 at " in str(error) and "Note: rank 1 got a new process." in str(error)
    assert list(world.run(remembered)) == [0, None, 2]


def test_an_interrupted_rank_keeps_its_process(remembering, interrupt) -> None:
    world = remembering(3)
    interrupt(world, lambda: dist.barrier() if rank() else time.sleep(1000))
    assert list(world.run(remembered)) == [0, 1, 2]
