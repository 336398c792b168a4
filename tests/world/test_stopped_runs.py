"""A run that is stopped ends, at whatever moment: nothing waits forever for Python's lock, the GIL.

`make endurance` stops 500 runs by their time limits and 200 by interrupts (`STOPPED_RUNS`).
"""

import contextlib
import gc
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from course_lib import World
from course_lib.world.rank_threads.stopping import must_finish

RUNS = int(os.environ.get("STOPPED_RUNS", "0"))

LAST_REFERENCE_IN_GARBAGE = """
import threading
import torch, torch.distributed as dist
from course_lib import RankError, World

def slowly(_):
    threading.Event().wait(1)  # on gloo's thread, which needs the GIL again afterwards

def keep_the_group_in_garbage(fail, destroy):
    group = dist.new_group()
    held = [group.boxed()]  # of C++, like the reducer's reference of DDP
    held.append(held)
    dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future().then(slowly)
    if destroy:
        dist.destroy_process_group(group)
    if fail:
        raise ValueError

for fail, destroy in (False, False), (True, False), (False, True):
    try:
        World(2).run(keep_the_group_in_garbage, fail, destroy)
    except RankError as error:
        assert error.kind == "raised" and fail, error
    print("ended", flush=True)
"""


@pytest.mark.slow
def test_a_group_that_only_garbage_holds_ends_while_its_thread_needs_the_gil() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAST_REFERENCE_IN_GARBAGE], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["ended"] * 3, done.stderr


def test_a_rank_is_not_stopped_inside_logging_whose_lock_would_stay_held() -> None:
    seen = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(must_finish(sys._getframe()))

    logger = logging.Logger("ranks")
    logger.addHandler(Handler())
    logger.warning("in a step")
    assert (seen, must_finish(sys._getframe())) == ([True], False)


@pytest.mark.slow
def test_the_next_run_of_processes_ends_a_group_that_only_garbage_holds() -> None:
    def keep_the_group_in_garbage() -> None:
        group = dist.new_group()
        held = [group.boxed()]
        held.append(held)
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        work.get_future().then(lambda _: threading.Event().wait(1))

    two = World(2, backend="processes", timeout=30)
    two.run(keep_the_group_in_garbage)
    assert len(list(two.run(gc.collect))) == 2


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep cores busy inside the block."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * RUNS)
@pytest.mark.skipif(not RUNS, reason="only `make endurance` stops so many runs")
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads and open files as Linux does")
@pytest.mark.parametrize(
    ("kind", "seed", "loops"),
    [
        ("limits", 1, 0),
        ("limits", 2, 2),
        ("limits", 3, 0),
        ("limits", 4, 2),
        ("limits", 5, 0),
        ("interrupts", 1, 0),
        ("interrupts", 2, 2),
    ],
)
def test_runs_stopped_at_random_moments_end_and_leave_nothing_open(kind: str, seed: int, loops: int) -> None:
    program = [sys.executable, "-m", "tests.world.stopped_runs", kind, str(seed), str(RUNS)]
    with busy(loops):
        done = subprocess.run(program, capture_output=True, text=True, timeout=50 + 20 * RUNS)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
    print(last := done.stdout.splitlines()[-1])
    threads, files, threads_after, files_after = map(int, re.findall(r"\d+", last))
    assert threads_after <= threads and files_after <= files
