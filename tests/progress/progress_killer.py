"""Writers for test_progress.py, in processes that start at once because they never import torch.

python progress_killer.py write FILE COUNT        stores COUNT attempts, prints the notice
python progress_killer.py kill FOLDER KILLS SEED  kills writers, two at a time, prints what was lost
python progress_killer.py stall FILE              changes the file, says so, and never commits
"""

import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TextIO

from course_lib.progress import Progress
from course_lib.progress.store import Store, merge


def source_of(number: str) -> str:
    """Several database pages, so that a torn write would show."""
    return f"def step():\n    return {number}\n" * 500


def write(path: str, numbers: Iterable[int], say: int) -> str:
    """Store attempts, and say so (on the file descriptor `say`) only after each call has returned.

    With a notice the attempts are in memory, which a kill loses: on a slow disk one writer can keep the lock for longer
    than the other waits.
    """
    progress = Progress(path)

    def tell(fact: str) -> None:
        if not progress.notice:
            os.write(say, f"{fact}\n".encode())

    for number in map(str, numbers):
        attempt = progress.begin_attempt(number, source_of(number))
        tell(f"{attempt.id} begun")
        progress.finish_attempt(attempt, "passed", [])
        tell(f"{attempt.id} finished")
    return progress.notice


def start_writer(path: str) -> tuple[int, TextIO]:
    """A process that writes until it is killed: its id, and what it says that it did."""
    hear, say = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(hear)
            write(path, itertools.count(), say)
        finally:
            os._exit(1)
    os.close(say)
    return process, open(hear)


def kill_writer(process: int, said: TextIO) -> list[str]:
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the writer had ended by itself"
    with said:
        return said.read().splitlines()


def stored(path: str) -> set[str]:
    """What the file holds, in the writers' words, read without the code under test."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        query = "SELECT id, exercise, source, status FROM attempts LEFT JOIN verdicts ON attempt = id"
        facts = set()
        for attempt, number, source, status in db.execute(query):
            assert source == source_of(number), f"attempt {number} is torn"
            facts |= {f"{attempt} begun"} | ({f"{attempt} finished"} if status == "passed" else set())
    return facts


def kill_loop(folder: str, kills: int, seed: int) -> dict[str, int]:
    """How many facts the writers said, and how many of those the files do not hold."""
    dice = random.Random(seed)
    heard: set[str] = set()
    for turn in range(kills // 2):
        path = f"{folder}/{turn // 5}.sqlite3"  # a new one for every ten kills, so that some meet its creation
        writers = [start_writer(path) for _ in range(2)]
        for process, said in writers:
            heard |= {said.readline().strip() for _ in range(dice.randrange(4))}
            time.sleep(dice.uniform(0.0, 0.02))
            heard |= set(kill_writer(process, said))
        progress = Progress(path)
        assert progress.summary() and not progress.notice
    held = set[str]().union(*(stored(str(file)) for file in Path(folder).glob("*.sqlite3")))
    return {"said": len(heard), "lost": len(heard - held)}


def stall(path: str) -> None:
    """Stop in the middle of a transaction, part of which is in the file already."""
    row = {"exercise": "stalled", "source": source_of("stalled"), "started_ns": 0}

    def work(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA cache_size = 1")  # so that SQLite writes before the end
        merge(db, {"attempts": [{"id": f"stalled {n}", **row} for n in range(20)]})
        print("changed", flush=True)
        time.sleep(60)

    Store(Path(path)).use(work)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", path, count]:
            with open(os.devnull, "wb") as nowhere:
                print(json.dumps({"notice": write(path, range(int(count)), nowhere.fileno())}))
        case ["kill", folder, kills, seed]:
            print(json.dumps(kill_loop(folder, int(kills), int(seed))))
        case ["stall", path]:
            stall(path)
