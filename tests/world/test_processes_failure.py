"""Whatever goes wrong on a rank that is a process is told in one message, at once, and the next run works."""

import _thread
import ctypes
import importlib
import os
import random
import signal
import sys
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, World
from course_lib.world.collectives.call import Call
from course_lib.world.learner_code import SourceLine
from course_lib.world.processes import run_loop
from course_lib.world.processes.fork_server import PID
from course_lib.world.processes.framing import framed
from course_lib.world.processes.messages import WRITE_STACK, OutsideGroup
from course_lib.world.processes.pool import pool
from course_lib.world.processes.run_loop import RunLoop
from course_lib.world.processes.worker_handle import WorkerHandle
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


def test_a_rank_that_raises():
    def program():
        if rank() == 2:
            raise ValueError("two is odd")
        dist.all_reduce(torch.ones(2))

    error = failure(program, world_size=4)
    assert (error.kind, error.rank) == ("raised", 2)
    assert lines(error)[0] == "rank 2 of 4 raised ValueError: two is odd"
    assert 'raise ValueError("two is odd")' in lines(error)[1]
    assert lines(error)[2].startswith("  ranks 0, 1, 3 waited in all_reduce #1 at test_processes_failure.py line ")
    assert "ValueError: two is odd" in error.traceback and "in program" in error.traceback
    assert "new process" not in str(error)
    assert list(World(4, backend="processes").run(remembered)) == [0, 1, 2, 3]


def test_the_traceback_has_the_lines_of_a_cell():
    import linecache

    source = 'def program():\n    raise KeyError("in a cell")\n'
    linecache.cache["<cell 5>"] = (len(source), None, source.splitlines(keepends=True), "<cell 5>")
    cell: dict = {}
    exec(compile(source, "<cell 5>", "exec"), cell)
    error = failure(cell["program"], world_size=1)
    assert '    raise KeyError("in a cell")' in error.traceback
    assert 'raise KeyError("in a cell")' in lines(error)[1]


@pytest.mark.parametrize(
    ("program", "kind", "told"),
    [
        (
            lambda: rank() == 2 or dist.barrier(),
            "absent",
            "rank 2 returned without the barrier #1 that ranks 0, 1 wait in",
        ),
        (
            lambda: dist.all_reduce(torch.ones(4 + rank() % 2)),
            "mismatch",
            "number of elements in all_reduce #1: ranks 0, 2: float32 [4]; rank 1: float32 [5]",
        ),
        (
            lambda: dist.all_reduce(torch.ones(4 + rank() % 2), async_op=True).wait(),
            "mismatch",
            "number of elements in all_reduce #1: ranks 0, 2: float32 [4]; rank 1: float32 [5]",
        ),
        (
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank() == 1 else torch.float32)),
            "mismatch",
            "dtype in all_reduce #1: ranks 0, 2: float32 [2]; rank 1: int32 [2]",
        ),
        (
            lambda: dist.broadcast(torch.ones(2), src=rank() // 2),
            "mismatch",
            "root in broadcast #1: ranks 0, 1: root 0; rank 2: root 1",
        ),
        (
            lambda: dist.all_reduce(torch.ones(2)) if rank() else dist.broadcast(torch.ones(2), 0),
            "mismatch",
            "different collectives at the same point: rank 0: broadcast #1; ranks 1, 2: all_reduce #1",
        ),
        (
            lambda: dist.recv(torch.empty(1), (rank() + 1) % 3),
            "deadlock",
            "deadlock: all 3 ranks wait for each other",
        ),
        (
            lambda: dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1])),
            "not_in_group",
            "rank 2 of 3 called all_reduce on a group that it does not belong to",
        ),
        (lambda: sys.exit(3) if rank() == 1 else dist.barrier(), "exited", "rank 1 of 3 left through sys.exit(3)"),
    ],
)
def test_it_is_told_as_on_simulated_ranks(program, kind, told):
    error = failure(program)
    assert error.kind == kind, error
    assert told in lines(error)[0], lines(error)[0]


def test_a_skipped_call_is_seen_even_when_the_next_one_fits():
    def program():
        x = torch.ones(2)
        if rank() != 1:
            dist.all_reduce(x)
        dist.all_reduce(x)

    error = failure(program)
    assert lines(error)[0] == "rank 1 returned without the all_reduce #2 that ranks 0, 2 wait in"
    assert "all_reduce #1 brought calls from different lines together" in str(error)


def test_an_exception_in_a_backward_hook_while_others_reduce():
    def program():
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        if rank() == 1:
            net.module.weight.register_hook(lambda gradient: 1 / 0)
        net(torch.ones(2, 4)).sum().backward()

    assert lines(failure(program))[0] == "rank 1 of 3 raised ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("die", "told", "advice"),
    [
        (lambda: os._exit(3), "its process left through os._exit(3)", "look at what that rank did last"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "its process was killed (SIGKILL)", "memory ran out"),
        (lambda: ctypes.string_at(0), "memory that is not its own (SIGSEGV, a segmentation fault)", "native code"),
        (lambda: os.abort(), "gave up in native code (SIGABRT)", "look at what that rank did last"),
    ],
)
def test_a_rank_that_dies_is_replaced_and_the_others_keep_their_state(die, told, advice):
    def program():
        if rank() == 1:
            die()
        dist.barrier()

    error = failure(program)
    assert (error.kind, error.rank) == ("died", 1)
    assert lines(error)[0].startswith("rank 1 of 3 died: ") and told in lines(error)[0]
    assert "  ranks 0, 2 waited in barrier #1 at " in str(error) and advice in str(error)
    assert "Note: rank 1 got a new process." in str(error) and "the others kept theirs" in str(error)
    assert list(World(3, backend="processes").run(remembered)) == [0, None, 2]


def test_a_crash_is_told_with_its_line():
    def program():
        ctypes.string_at(0)

    error = failure(program, world_size=1)
    assert lines(error)[1].startswith("  rank 0 died at test_processes_failure.py line ")
    assert lines(error)[1].endswith("in program:  ctypes.string_at(0)")


def test_a_rank_that_dies_in_the_middle_of_a_transfer():
    def program():
        if rank() == 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            dist.all_reduce(torch.ones(1_000_000))

    error = failure(program)
    assert (error.kind, error.rank) == ("died", 1)


def test_a_rank_that_dies_where_it_waits_stays_dead_when_the_others_come():
    def program():
        pids = [None] * 3
        dist.all_gather_object(pids, os.getpid())
        if rank() == 0:
            time.sleep(0.2)
            os.kill(pids[1], signal.SIGKILL)
            while psutil.pid_exists(pids[1]):
                time.sleep(0.01)
            time.sleep(0.05)
        dist.barrier()

    error = failure(program)
    assert (error.kind, error.rank) == ("died", 1)
    assert [report.state for report in error.ranks] == ["waiting", "died", "waiting"]
    assert "  rank 1 died in barrier #1 at " in str(error) and "Note: rank 1 got a new process." in str(error)
    assert list(World(3, backend="processes").run(remembered)) == [0, None, 2]


def test_what_a_rank_told_before_it_died_is_heard_first(far_end):
    call = Call(op="barrier", group_name="", ranks=(), source_line=SourceLine(filename="", line=1, function=""))
    far_end.wire.sendall(framed((1, OutsideGroup(call=call))))
    os.write(far_end.status, PID.pack(-signal.SIGKILL))
    run_loop = RunLoop([far_end.process], 1, [])
    run_loop._died(0)
    while run_loop._read(0):
        pass
    [report] = run_loop.coordinator.reports(lambda _: None)
    assert (report.state, report.call) == ("died", call)


def test_ranks_that_died_between_two_runs_are_replaced(capsys):
    world = World(2, backend="processes")
    pid = list(world.run(os.getpid))[1]
    os.kill(pid, signal.SIGKILL)
    while pid in {process.pid for process in pool.processes if not process.dead()}:
        time.sleep(0.01)
    assert list(world.run(total)) == [2.0, 2.0]
    assert "rank 1 had died since the last run" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "replaced"),
    [
        (lambda: list(iter(int, 1)), True),  # in C
        (lambda: time.sleep(1000), False),
        (lambda: [None for _ in iter(lambda: 0, 1)], False),  # in Python
    ],
)
def test_a_loop_without_end_is_stopped_and_told(loop, replaced, monkeypatch):
    signals = []
    send = WorkerHandle.signal
    monkeypatch.setattr(WorkerHandle, "signal", lambda process, number: (signals.append(number), send(process, number)))
    if not replaced:
        monkeypatch.setattr(run_loop, "LOCATE", 5.0)  # the machine may be busy

    def program():
        if rank() == 1:
            loop()
        dist.barrier()

    error = failure(program, world_size=2, timeout=0.7)
    assert lines(error)[0] == "the run was stopped after its time limit of 0.7 s: rank 1 had not finished"
    assert lines(error)[1].startswith("  rank 1 at test_processes_failure.py line ")
    assert "rank 0 waited in barrier #1" in str(error)
    assert ("rank 1 got a new process" in str(error)) is replaced
    assert (WRITE_STACK in signals) is replaced  # sent to a rank in Python code, it may end its process
    assert list(World(2, backend="processes").run(remembered)) == [0, None if replaced else 1]


@pytest.mark.slow
def test_a_kernel_that_was_held_up_hears_what_came_before_the_time_limit(hold_up):
    world = World(2, backend="processes", timeout=0.5)
    list(world.run(rank))
    hold_up(1)
    assert list(world.run(rank)) == [0, 1]


@pytest.mark.slow
def test_a_loop_that_catches_everything():
    def program():
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                continue

    assert "both ranks got a new process" in str(failure(program, world_size=2, timeout=0.5))


def test_interrupting_stops_every_rank():
    def program():
        while rank() == 0:
            pass
        dist.barrier()

    world = World(3, backend="processes", timeout=30)
    world.run(remember)
    threading.Timer(0.3, _thread.interrupt_main).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match="the run was interrupted") as caught:
        world.run(program)
    assert time.monotonic() - started < world.timeout / 2
    assert "ranks 1, 2 waited in barrier #1" in str(caught.value)
    assert list(world.run(remembered)) == [0, 1, 2]


def test_what_ranks_printed_before_the_failure_is_kept_and_shown_once(capsys):
    def program():
        print("so far")
        raise ValueError

    error = failure(program, world_size=2)
    assert error.output == ("so far\n", "so far\n")
    assert capsys.readouterr().out.count("[rank 1] so far") == 1


def test_a_stop_in_the_middle_of_an_import_ends_the_process(tmp_path, monkeypatch):
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
def test_a_rank_that_closes_its_output_has_one_in_the_next_run(close):
    def program():
        close()
        print("gone")

    assert "print" in lines(failure(program, world_size=2))[1]
    assert World(2, backend="processes").run(lambda: print("here")).output == ("here\n", "here\n")


def test_a_stop_that_comes_in_a_finalizer_is_not_told():
    def generator():
        try:
            yield
        finally:
            dist.barrier()

    def program():
        if rank() == 0:
            next(generator())

    assert failure(program, world_size=2).output == ("", "")


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
def test_after_every_one_of_many_mixed_failures_the_next_run_is_right():
    world = World(3, backend="processes", timeout=30)
    mixed = random.Random(0)
    for _ in range(int(os.environ.get("ENDURANCE", "20"))):
        name = mixed.choice(list(MIXED))
        with pytest.raises(RankError) as caught:
            world.run(MIXED[name])
        assert caught.value.kind != "timeout", name
        assert list(world.run(total)) == [3.0] * 3, name
