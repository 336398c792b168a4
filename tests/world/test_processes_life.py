"""The kernel that owns ranks: how it interrupts them, and what is left when it is gone."""

import signal
import subprocess
import sys
import time

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from course_lib import World
from course_lib.world.processes.output import END_OF_RUN, Output
from course_lib.world.processes.rank import STOP
from course_lib.world.rank_threads.printing import FoldedLines, Lines

PROGRAM = """
import os
import psutil
import torch.distributed as dist
from course_lib import World
world = World(2, backend="processes", timeout=60)
pids = list(world.run(os.getpid))
print(*pids, psutil.Process(pids[0]).ppid(), flush=True)
"""

LOOP = """
def loop():
    if dist.get_rank() == 1:
        print("in the loop", flush=True)
        {loop}
    dist.barrier()
world.run(loop)
"""

INTERRUPTED_START = """
import math, os, signal, threading
from course_lib import World
from course_lib.world import put_off
from course_lib.world.rank_threads import interrupts

interrupts.PATIENCE = math.inf  # the start may take longer

def interrupt_group():  # as Jupyter does
    while not over.wait(0.02):
        os.killpg(0, signal.SIGINT)

over = threading.Event()
with put_off() as late:
    thread = threading.Thread(target=interrupt_group)
    thread.start()
    try:
        World(2, backend="processes").run(os.getpid)
    except KeyboardInterrupt as error:
        print(str(error).splitlines()[0])
    over.set()
    thread.join()
    late.clear()
blocked = lambda: signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
print(*World(2, backend="processes").run(blocked))
"""


def gone(pids: set[int]) -> bool:
    """Whether all of these end, soon."""
    deadline = time.monotonic() + 60  # ranks end at once; Python's end takes the fork server long on a busy machine
    while time.monotonic() < deadline:
        if not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_no_rank_outlives_a_kernel_that_is_killed_even_if_it_is_suspended() -> None:
    code = PROGRAM + LOOP.format(loop="import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout is not None
        pids = set(map(int, kernel.stdout.readline().split()))
        assert len(pids) == 3
        kernel.stdout.readline()
        kernel.send_signal(signal.SIGKILL)
    assert gone(pids)


@pytest.mark.slow
def test_interrupts_while_ranks_start_reach_neither_the_fork_server_nor_the_ranks() -> None:
    command = [sys.executable, "-c", INTERRUPTED_START]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, start_new_session=True)
    assert (done.stdout, done.stderr) == ("the run was interrupted\nFalse False\n", "")


@pytest.mark.slow
def test_a_script_without_a_guard_runs_once_chooses_its_own_start_method_and_ends_its_ranks(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM + "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    pids = set(map(int, done.stdout.split()))
    assert len(pids) == 3 and done.stderr == ""
    assert gone(pids)


def test_a_rank_can_be_stopped_after_a_function_that_took_the_signal() -> None:
    world = World(1, backend="processes")
    world.run(lambda: signal.signal(STOP, signal.SIG_IGN) and None)
    assert world.run(lambda: signal.getsignal(STOP).__name__)[0] == "_stop"


def test_output_ends_at_the_mark_however_it_is_cut() -> None:
    text = b"a\0b\n" + END_OF_RUN
    for size in range(1, len(text) + 1):
        output = Output(1, Lines())
        for start in range(0, len(text), size):
            assert not output.ended
            output.add(0, text[start : start + size])
        output.close()
        assert output.ended == {0} and output.texts == ["a\0b\n"]


def test_a_line_without_an_end_is_printed_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(1, FoldedLines(1))
    for _ in range(300):
        output.add(0, b"1" * 1000)
        output.show_when_due()
    assert capsys.readouterr().out.count("[rank 0] 1") == 2
    output.close()
    assert output.texts == ["1" * 300_000]


@pytest.mark.slow
def test_jupyters_interrupt_stops_the_run_and_the_next_one_is_right() -> None:
    manager, client = start_new_kernel(kernel_name="python3")
    printed: list[str] = []

    def hear(message) -> None:
        content = message["content"]
        printed.append(content.get("text", "") + "\n".join(content.get("traceback", [])))
        if "in the loop" in printed[-1]:
            manager.interrupt_kernel()

    def run(code):
        printed.clear()
        return client.execute_interactive(code, output_hook=hear, timeout=60, allow_stdin=False)["content"]["status"]

    try:
        assert run(PROGRAM) == "ok"
        before = "".join(printed).split()
        assert run(LOOP.format(loop="while True: pass")) == "error"
        assert "KeyboardInterrupt: the run was interrupted" in "".join(printed)
        assert "  rank 1 at cell In[2], line 4, in loop:  while True: pass" in "".join(printed)
        assert "  rank 0 waited in barrier #1 at cell In[2], line 5" in "".join(printed)
        assert run(PROGRAM) == "ok"
        assert "".join(printed).split() == before
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
