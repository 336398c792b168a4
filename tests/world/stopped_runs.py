"""Stop many runs at random moments, in a process of its own: a hang would hold Python's lock, and then nothing else
could run, not even a time limit.

    python -m tests.world.stopped_runs limits|interrupts SEED RUNS

The last line is "open: BEFORE, AFTER": the process's threads, of Python and of C++, and its open files.
"""

import os
import random
import signal
import sys
import threading
import time

import psutil
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib import RankError, World
from tests.world.programs import total


def train(steps: int = 4000) -> None:
    net = DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(steps):
        net(torch.ones(2, 8)).sum().backward()
        dist.all_reduce(torch.ones(10))
        dist.all_gather_object([None] * dist.get_world_size(), step)


def limited(ranks: int, seconds: float) -> None:
    try:
        World(ranks, timeout=seconds).run(train)
    except RankError as error:
        if error.kind != "timeout":
            raise
    else:
        raise AssertionError("the run was not stopped")


def interrupted(ranks: int, seconds: float) -> None:
    alarm = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    try:
        alarm.start()
        World(ranks).run(train)
    except KeyboardInterrupt:
        alarm.join()
    else:
        raise AssertionError("the run was not interrupted")


def held(expected: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the numbers of threads and open files. Those that are still ending have 10 s to reach `expected`."""
    this, deadline = psutil.Process(), time.monotonic() + 10
    while True:
        threads, files = this.num_threads(), this.num_fds()
        few = expected is None or (threads <= expected[0] and files <= expected[1])
        if (few and threading.active_count() == 1) or time.monotonic() > deadline:
            return threads, files
        time.sleep(0.05)


def main(kind: str, seed: str, runs: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng, stop = random.Random(int(seed)), {"limits": limited, "interrupts": interrupted}[kind]
    World(3).run(train, 1)  # what torch and the world import and open once, and keep
    stop(3, 1.0)
    before = held()
    for number in range(int(runs)):
        print(number, flush=True)
        stop(rng.choice((2, 3)), 0.02 + 0.3 * rng.random())
        assert list(World(2).run(total)) == [2.0] * 2
    print(f"open: {before}, {held(before)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
