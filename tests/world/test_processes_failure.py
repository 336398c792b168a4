"""Whatever goes wrong on a rank that is a process is told in one message, at once, and the next run works."""

import ctypes
import importlib
import os
import random
import resource
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, World
from course_lib.meter import SourceLine
from course_lib.world.collectives.call import Call
from course_lib.world.processes.pool import pool
from course_lib.world.processes.protocol import Finished
from course_lib.world.processes.run_loop import RunLoop
from course_lib.world.processes.worker_handle import Process
from course_lib.world.rank_threads.printing import Lines
from tests.world import programs
from tests.world.programs import lines, total


def rank() -> int:
    return dist.get_rank()


def remember() -> None:
    sys.modules["math"].left_by_a_rank = rank()


def remembered() -> int | None:
    return getattr(sys.modules["math"], "left_by_a_rank", None)


def failure(fn, world_size: int = 3, timeout: float = 30.0) -> RankError:
    """As `programs.failure`, on processes that `remember` something."""
    world = World(world_size, backend="processes", timeout=timeout)
    world.run(remember)
    return programs.failure(world, fn)


def test_what_a_rank_told_before_it_died_is_heard_first(far_end) -> None:
    call = Call(variant="barrier", rank=0, group_name="", ranks=(), line=SourceLine("", 1, ""))
    far_end.wire.send((1, "outside", (call,)))
    far_end.handle.process.exitcode = -signal.SIGKILL
    run_loop = RunLoop([far_end.handle], 1, [], Lines())
    run_loop._died(0)
    while run_loop._read(0):
        pass
    [report] = run_loop.coordinator.reports({0: None})
    assert (report.state, report.call.variant) == ("died", "barrier")


def test_ranks_that_died_between_two_runs_are_replaced(capsys) -> None:
    world = World(2, backend="processes")
    pid = list(world.run(os.getpid))[1]
    os.kill(pid, signal.SIGKILL)
    while pid in {handle.process.pid for handle in pool.processes if not handle.dead()}:
        time.sleep(0.01)
    assert list(world.run(total)) == [2.0, 2.0]
    assert "rank 1 had died since the last run" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "replaced"),
    [
        (lambda: list(iter(int, 1)), True),  # in C
        (lambda: time.sleep(1000), False),
    ],
)
def test_a_loop_without_end_is_stopped_and_told(loop, replaced, monkeypatch) -> None:
    signals = []
    kill = Process.kill

    def recorded_kill(process: Process, number: int = signal.SIGKILL) -> None:
        signals.append(number)
        kill(process, number)

    monkeypatch.setattr(Process, "kill", recorded_kill)

    def program() -> None:
        if rank() == 1:
            loop()
        dist.barrier()

    error = failure(program, world_size=2, timeout=0.7)
    assert lines(error)[0].startswith("the run was stopped after its time limit of 0.7 s: rank 1 had not finished; ")
    assert lines(error)[1].startswith("  rank 1 at test_processes_failure.py line ")
    assert "rank 0 waited in barrier #1" in str(error)
    assert ("rank 1 got a new process" in str(error)) is replaced
    assert (signal.SIGABRT in signals) is replaced
    assert list(World(2, backend="processes").run(remembered)) == [0, None if replaced else 1]


def test_a_rank_that_finishes_under_a_deadly_signal_gets_a_new_process(far_end, monkeypatch) -> None:
    left = Finished(
        how="returned", raised=None, raised_in_thread=None, result=("NoneType", b""), calls=[], span=(0, 1),
        memory=None, has_group=True, spent=False,
    )  # fmt: skip
    monkeypatch.setattr(far_end.handle.process, "kill", lambda number: far_end.wire.send((1, "finished", (left,))))
    monkeypatch.setattr("course_lib.world.processes.run_loop.GRACE", 0.2)
    run_loop = RunLoop([far_end.handle], 1, [], Lines())
    run_loop.coordinator.fail("timeout")
    run_loop.end()
    assert not run_loop._active
    assert run_loop.spent == [0]


@pytest.mark.slow
def test_a_kernel_that_was_held_up_hears_what_came_before_the_time_limit(hold_up) -> None:
    world = World(2, backend="processes")
    list(world.run(rank))
    world.timeout = 2.0
    hold_up(3)
    assert list(world.run(rank)) == [0, 1]


def test_a_stop_in_the_middle_of_an_import_ends_the_process(tmp_path, monkeypatch) -> None:
    begun = programs.slow_package(tmp_path / "slow_in_a_process", seconds=20)
    monkeypatch.syspath_prepend(tmp_path)

    def value():
        return importlib.import_module("slow_in_a_process").part.VALUE

    def program():
        if rank() == 0:
            return value()
        while not begun.exists():
            time.sleep(0.01)
        raise ValueError

    assert "rank 0 got a new process" in str(failure(program, world_size=2))
    assert list(World(2, backend="processes").run(value)) == [3, 3]


@pytest.mark.parametrize("close", [lambda: sys.stdout.close(), lambda: os.close(1)])
def test_a_rank_that_closes_its_output_has_one_in_the_next_run(close) -> None:
    def program() -> None:
        close()
        print("gone")

    assert "print" in lines(failure(program, world_size=2))[1]
    assert World(2, backend="processes").run(lambda: print("here")).output == ("here\n", "here\n")


@pytest.mark.slow
def test_a_group_that_did_not_form_does_not_hold_up_the_next_run() -> None:
    def program():
        if rank() == 0:
            dist.destroy_process_group()
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=2)

    world = World(2, backend="processes", timeout=30)
    with pytest.raises(RankError, match="rank 1 returned without the init_process_group #1 that rank 0 waits in"):
        world.run(program)
    assert list(world.run(total)) == [2.0] * 2


MIXED = {
    "raise": lambda: 1 / 0 if rank() == 1 else dist.barrier(),
    "return": lambda: rank() == 0 or dist.barrier(),
    "mismatch": lambda: dist.all_reduce(torch.ones(2 + rank())),
    "skip": lambda: (rank() and dist.all_reduce(torch.ones(1)), dist.all_reduce(torch.ones(1))),
    "exit": lambda: os._exit(1) if rank() == 2 else dist.barrier(),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL) if rank() == 0 else dist.barrier(),
    "crash": lambda: ctypes.string_at(0) if rank() == 1 else dist.barrier(),
    "all crash": lambda: ctypes.string_at(0),
    "late": lambda: (dist.all_reduce(torch.ones(5), async_op=True), 1 / (rank() - 1)),
    "group": lambda: (dist.new_group([0, 1]), rank() == 2 or dist.new_group([0, 2])),
}


@pytest.mark.slow
def test_after_every_one_of_many_mixed_failures_the_next_run_is_right() -> None:
    world = World(3, backend="processes", timeout=30)
    mixed = random.Random(0)
    for name in mixed.choices(list(MIXED), k=int(os.environ.get("ENDURANCE", "10"))):
        with pytest.raises(RankError) as caught:
            world.run(MIXED[name])
        assert caught.value.kind != "timeout", name
        assert list(world.run(total)) == [3.0] * 3, name


def test_a_process_that_cannot_begin_a_run_is_replaced() -> None:
    def program() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
        raise ValueError

    world = World(2, backend="processes")
    with pytest.raises(RankError, match="raised ValueError"):
        world.run(program)
    with pytest.raises(RankError, match="both ranks got a new process"):
        world.run(total)
    assert list(world.run(total)) == [2.0, 2.0]
