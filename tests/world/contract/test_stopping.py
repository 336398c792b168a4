"""An interrupt and the time limit end every rank, and say where each was; the next run works."""

import importlib
import re
import signal
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, World
from course_lib.world.collectives.fault import Stopped
from tests.world.programs import failure, lines, rank, slow_package


def works(world) -> bool:
    return list(world.run(dist.get_rank)) == list(range(world.world_size))


def loop_on_rank_0() -> None:
    if rank() == 0:
        while True:
            pass
    dist.barrier()


def test_an_interrupt_stops_every_rank(world, interrupt) -> None:
    three = world(3, timeout=30)
    interrupted = interrupt(three, loop_on_rank_0)
    told = str(interrupted).splitlines()
    assert told[0] == "the run was interrupted"
    assert told[1].startswith("  rank 0 at test_stopping.py line ")
    assert told[2].startswith("  ranks 1, 2 waited in barrier #1 at test_stopping.py line ")
    assert told[3] == "Next: if the ranks stood still, look at rank 0, which others waited for."
    assert "\n".join(interrupted._render_traceback_()).startswith("KeyboardInterrupt: the run was interrupted")
    assert works(three)


def test_a_run_in_the_middle_of_a_run_is_refused(local_world) -> None:
    refused: list[str] = []

    def start_a_run(*_: object) -> None:
        with pytest.raises(CourseError) as caught:
            local_world(2).run(rank)
        refused.append(str(caught.value))

    two = local_world(2, timeout=60)
    two.run(rank)  # starts the processes
    before = signal.signal(signal.SIGALRM, start_a_run)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        two.run(lambda: time.sleep(1))
    finally:
        signal.signal(signal.SIGALRM, before)
    (message,) = refused
    assert message.startswith("World.run was called in the middle of a run, by a signal handler or a finalizer")
    assert works(two)


def test_an_exception_of_a_signal_handler_stops_every_rank(local_world, capsys) -> None:
    class Alarm(Exception):
        pass

    def sound(*_) -> None:
        raise Alarm

    def program() -> None:
        print("begun")
        while True:
            dist.all_reduce(torch.ones(2))

    two = local_world(2, timeout=30)
    two.run(rank)  # starts the processes
    threads = threading.active_count()
    before = signal.signal(signal.SIGALRM, sound)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(Alarm):
            two.run(program)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "begun" in capsys.readouterr().out
    assert threading.active_count() == threads
    assert works(two)


@pytest.mark.slow
def test_a_loop_without_end(world) -> None:
    def program() -> None:
        if rank() == 1:
            while True:
                torch.ones(2).sum()
        dist.barrier()

    error = failure(world(3, timeout=0.7), program)
    assert (error.kind, error.rank) == ("timeout", 1)
    headline = "the run was stopped after its time limit of 0.7 s: rank 1 had not finished; others had waited for it"
    assert re.fullmatch(rf"{re.escape(headline)} for \d\.\d s", lines(error)[0])
    assert "\n  ranks 0, 2 waited in barrier #1 at test_stopping.py line " in str(error)
    assert "\n  rank 1 at test_stopping.py line " in str(error)
    assert "\nNext: look for a loop or a wait that never ends on rank 1; " in str(error)
    assert "Note: " not in str(error)


@pytest.mark.slow
def test_a_running_rank_whose_call_the_others_left_out(world) -> None:
    def program() -> None:
        if rank() > 0:
            work = dist.all_reduce(torch.ones(2), async_op=True)
            while not work.is_completed():  # as DDP waits in C++
                time.sleep(0.01)
        dist.new_group([0, 1])

    error = failure(world(3, timeout=0.7), program)
    assert re.search(
        r"\n  ranks 1, 2 called all_reduce #1 at test_stopping.py line \d+, and rank 0 did not\n", str(error)
    )
    assert "\nNext: look for a call that only some ranks make: a longer loop, or an `if`. If there is none:" in str(
        error
    )


@pytest.mark.slow
def test_a_simulated_rank_that_sleeps_too_long() -> None:
    error = failure(World(2, timeout=0.7), lambda: time.sleep(1000 if rank() == 1 else 0))
    assert lines(error)[0] == "the run was stopped after its time limit of 0.7 s: rank 1 had not finished"


@pytest.mark.slow
def test_a_loop_that_catches_everything(process_world) -> None:
    def program() -> None:
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                continue

    error = failure(process_world(2, timeout=0.7), program)
    assert error.kind == "timeout" and "both ranks got a new process" in str(error)


@pytest.mark.slow
def test_a_result_that_is_handed_over_survives_the_failure_of_a_peer(world) -> None:
    def program():
        if rank() == 1:
            time.sleep(1)
            raise ValueError
        return torch.zeros(5_000_000)

    assert "new process" not in str(failure(world(2), program))


def test_a_stop_that_comes_in_a_finalizer_is_not_printed(local_world) -> None:
    class Slow:
        def __del__(self) -> None:
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                pass

    def program() -> None:
        Slow()
        while True:
            pass

    error = failure(local_world(1, timeout=0.35), program)  # late in what takes 0.4 s
    assert (error.kind, error.output) == ("timeout", ("",))


def test_a_stop_does_not_come_in_pythons_hook_for_what_a_finalizer_raises(local_world) -> None:
    class Dropped:
        @property
        def exc_type(self) -> type[BaseException]:
            end = time.monotonic() + 0.4
            try:
                while time.monotonic() < end:
                    pass
            except BaseException as error:
                print(f"{type(error).__name__} came in the hook")
                raise
            return Stopped

    def program() -> None:
        sys.unraisablehook(Dropped())
        while True:
            pass

    error = failure(local_world(1, timeout=0.35), program)  # late in what takes 0.4 s
    assert (error.kind, error.output) == ("timeout", ("",))


def test_a_stop_that_ends_a_generator_is_not_printed(local_world) -> None:
    def generator():
        try:
            yield
        finally:
            dist.barrier()

    def program() -> None:
        if rank() == 0:
            next(generator())

    assert failure(local_world(2), program).output == ("", "")


def test_a_module_whose_import_was_stopped_can_be_imported_in_the_next_run(local_world, tmp_path, monkeypatch) -> None:
    begun = slow_package(tmp_path / f"slow_{tmp_path.name}", seconds=1)
    monkeypatch.syspath_prepend(tmp_path)

    def value():
        return importlib.import_module(begun.parent.name).part.VALUE

    def program():
        if rank() == 0:
            return value()
        while not begun.exists():
            time.sleep(0.01)
        raise ValueError

    assert failure(local_world(2), program).kind == "raised"
    assert list(local_world(2).run(value)) == [3, 3]


def test_an_import_that_takes_longer_than_the_time_limit(local_world, tmp_path, monkeypatch) -> None:
    name = slow_package(tmp_path / f"slow_{tmp_path.name}", seconds=2).parent.name
    monkeypatch.syspath_prepend(tmp_path)
    error = failure(local_world(2, timeout=0.5), lambda: None if rank() else importlib.import_module(name).part.VALUE)
    assert lines(error)[0].endswith("rank 0 had not finished")
    assert "import_module(name)" in lines(error)[1]
