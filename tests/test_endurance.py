"""One kernel, used for long: exercises right and wrong, worlds of each kind, failures; nothing piles up.

`make endurance` lets it go on for an hour (`ENDURANCE_SECONDS`).
"""

import ctypes
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, World, exercises
from course_lib.world.processes.pool import pool

SECONDS = float(os.environ.get("ENDURANCE_SECONDS", "5"))
GROWTH = 32e6
"""Bytes that memory may grow by, from the first half to the second: allocators keep some of what was given back."""

GLOO_KEEPS = 20e3
"""Bytes more for each use. Four groups of gloo's alone, made, used for one all-reduce and closed, leave 2.5 kB that
nothing gives back; a world has them for each run, and a check has six runs and more."""

BETWEEN = 5
"""Uses between two looks at what is held."""

BACKENDS = ("simulated", "simulated", "processes")

# Not those that call FSDP2: for each new shape that it comes to, it keeps a mesh, and with it that mesh's group.
OF_FSDP2 = ("production.", "cluster.", "precision.masters")
EXERCISES = [exercises.get(name) for name in exercises.names() if not name.startswith(OF_FSDP2)]

Use = Callable[[random.Random], None]


def check_an_answer(rng: random.Random) -> None:
    exercise = rng.choice(EXERCISES)
    if rng.random() < 0.5:
        assert exercise.check(exercise.reference).status == "passed"
    else:
        mistake = rng.choice(exercise.mistakes)
        assert exercise.check(mistake.solution).status in ("failed", "error")


def train(width: int) -> torch.Tensor:
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, width))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        net(torch.ones(1, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.module.bias.detach()


def fail_at_random(seed: int) -> None:
    rng = random.Random(seed + dist.get_rank())
    for _ in range(rng.randrange(3)):
        dist.all_reduce(torch.ones(rng.choice([2, 2, 2, 3])))
    if rng.random() < 0.3:
        raise ValueError(seed)


def make_a_world(rng: random.Random) -> None:
    world = World(rng.randint(1, 6), backend=rng.choice(BACKENDS), measure=rng.random() < 0.7)
    first, *others = world.run(train, rng.randint(1, 300))
    assert all(torch.equal(first, other) for other in others)


def fail(rng: random.Random) -> None:
    world = World(rng.randint(2, 5), backend=rng.choice(BACKENDS))
    try:
        world.run(fail_at_random, rng.getrandbits(32))
    except CourseError as error:
        assert "rank" in str(error)  # noqa: PT017 (a run may also succeed)


def dry_run(rng: random.Random) -> None:
    World(2 ** rng.randint(1, 10), backend="dryrun").run(train, rng.randint(1, 300))


def held() -> tuple[int, int, int, int]:
    """Bytes of memory, threads and open files of this kernel; open files of its ranks' processes, all in one group."""
    World(6, backend="processes").run(dist.barrier)
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps is not held by anyone
    kernel, ranks = psutil.Process(), [psutil.Process(handle.process.pid) for handle in pool.processes]
    of_ranks = max(rank.num_fds() for rank in ranks)
    return kernel.memory_info().rss, threading.active_count(), kernel.num_fds(), of_ranks


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 300)
@pytest.mark.skipif(not hasattr(psutil.Process, "num_fds"), reason="counts open files, which this system does not tell")
def test_nothing_piles_up() -> None:
    rng = random.Random(0)
    uses: list[Use] = [check_an_answer, check_an_answer, make_a_world, fail, dry_run]
    for use in uses:  # what is opened once and kept
        use(rng)
    begun, history = time.monotonic(), [held()]
    while len(history) < 4 or time.monotonic() - begun < SECONDS:
        for _ in range(BETWEEN):
            rng.choice(uses)(rng)
        history.append(held())
    early, late = history[: len(history) // 2], history[len(history) // 2 :]
    print(f"{BETWEEN * len(history)} uses: {history[0]}, {early[-1]}, {late[-1]}")
    memory, threads, files, of_ranks = (max(column) for column in zip(*early, strict=True))
    memory_late, threads_late, files_late, of_ranks_late = (max(column) for column in zip(*late, strict=True))
    assert (threads_late, files_late) == (threads, files)
    assert of_ranks_late <= of_ranks + 10  # connections come and go with the groups that ranks were in
    # Before that, torch, gloo and the allocator still meet what is new to them.
    assert SECONDS < 600 or memory_late - memory <= GROWTH + GLOO_KEEPS * BETWEEN * len(late)
