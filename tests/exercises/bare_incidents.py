"""Run the start program of each incident in bare processes, without the course's world.

    python -m tests.exercises.bare_incidents FOLDER

Each incident has processes and a process group of its own. FOLDER gets a file for each incident and
rank: `incidents.out_of_memory.2`.
"""

import importlib
import multiprocessing
import pickle
import re
import signal
import sys
import time
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib.exercises import Case, Exercise, get, names
from course_lib.exercises.checking.cases import draw
from course_lib.exercises.checking.plain import plain
from course_lib.lessons.incidents import thirty_minutes
from course_lib.widgets.cells import MODULES

INCIDENTS = [name for name in names() if name.startswith("incidents.")]

LIMIT = timedelta(seconds=4)
"""How long a rank waits in a collective of gloo."""

GLOO = re.compile("gloo|monitoredBarrier|Connection closed by peer")


def end(exercise: Exercise, case: Case) -> tuple[str, Any]:
    """Run the program on this rank. Return how it ended, and what it returned or raised."""
    trial = exercise.trial or (lambda solution, *args: solution(*args))
    try:
        return "returned", plain(trial(exercise.stub, *case.args(dist.get_rank())))
    except Exception as error:
        if isinstance(error, RuntimeError) and GLOO.search(str(error)):
            return "stuck", None
        return "raised", type(error).__name__


def join_and_end(folder: Path, name: str, rank: int, case: Case) -> None:
    """Run the program on this rank, and write how it ended. Return when all ranks have written it."""
    torch.set_num_threads(1)  # as torchrun does
    dist.init_process_group("gloo", f"file://{folder}/{name}.store", LIMIT, case.world_size, rank)
    write(folder / f"{name}.{rank}", end(get(name), case))
    wait_for(folder, name, case)  # a rank that leaves its group would end the waits of its peers
    dist.destroy_process_group()


def write(file: Path, what: tuple[str, Any]) -> None:
    part = file.with_suffix(f".part{file.suffix[1:]}")
    part.write_bytes(pickle.dumps(what))
    part.rename(file)


def wait_for(folder: Path, name: str, case: Case) -> None:
    while len(list(folder.glob(f"{name}.[0-9]"))) < case.world_size:
        time.sleep(0.02)


def main(folder: Path) -> None:
    for module in MODULES:
        importlib.import_module(module)  # else each process would do so
    thirty_minutes.PAUSE = 6  # longer than the limit
    fork = multiprocessing.get_context("fork")
    for name in INCIDENTS:
        case = draw(get(name), 0)[0]
        ranks = [fork.Process(target=join_and_end, args=(folder, name, r, case)) for r in range(case.world_size)]
        for process in ranks:
            process.start()
        running = {process.sentinel: (rank, process) for rank, process in enumerate(ranks)}
        while running:
            for sentinel in wait([*running]):
                rank, process = running.pop(sentinel)
                process.join()
                if process.exitcode == -signal.SIGABRT:  # gloo aborts where more arrives than is expected; NCCL waits
                    write(folder / f"{name}.{rank}", ("stuck", None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
