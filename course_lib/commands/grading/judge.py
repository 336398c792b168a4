"""Check the functions that a notebook handed in, in a fresh process: see `commands.checker`."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .limits import Limits, Watch
from .report import Grade

CRASHED = "the function ended the process that checked it: os._exit, a crash, or no memory left"
OWN_VERDICT = "the function wrote a verdict of its own where the checker writes its answers"
NO_TIME = "it was not checked: those before it took all of the time"
LARGEST_ANSWER_BYTES = 10**7


def judge(solutions: Sequence[tuple[str, Path]], scratch: Path, limits: Limits) -> Iterator[Grade]:
    """Check each solution. If one ends the process, the next process checks the rest.

    Args:
        solutions: the exercise and the file of each packed function.
        scratch: a folder for the process, which works in `scratch/work`.
        limits: `limits.seconds` are for all of them together.
    """
    waiting, deadline = list(solutions), time.monotonic() + limits.seconds
    while waiting and time.monotonic() < deadline:
        for grade in _checked(list(waiting), scratch, limits, deadline - time.monotonic()):
            del waiting[0]
            yield grade
    for name, _ in waiting:
        yield Grade(exercise=name, status="error", observed=NO_TIME)


def _checked(solutions: Sequence[tuple[str, Path]], scratch: Path, limits: Limits, seconds: float) -> Iterator[Grade]:
    """Yield the grades from one process, up to the first exercise for which it has no answer."""
    token, work = secrets.token_hex(), scratch / "work"
    ours, theirs = Pipe()
    with (
        ours,
        subprocess.Popen(
            # -P: do not import the checker from a folder in which the notebook could write.
            [sys.executable, "-P", "-m", "course_lib.commands.checker"],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=work if work.is_dir() else scratch,  # the notebook may have deleted it
            env=os.environ | {"COURSE_HOME": str(scratch / "home"), "TMPDIR": str(scratch)},
            start_new_session=True,  # a signal to its group does not reach the grader
        ) as process,
        Watch(process.pid, limits, seconds) as watch,
    ):
        theirs.close()
        ours.send_bytes(json.dumps([token, *((name, str(file)) for name, file in solutions)]).encode())
        found = _answer(ours, token, None, watch)  # it is ready: no exercise's time runs before
        for number, (name, _) in enumerate(solutions):
            if isinstance(found, dict):
                found = _answer(ours, token, limits.turn_seconds, watch)
            if found == CRASHED and number:  # a thread of an earlier function may have done it: start with this one
                return
            if isinstance(found, str):
                yield Grade(exercise=name, status="error", observed=found)
                return
            yield Grade(**found)


def _answer(checker: Connection, token: str, seconds: float | None, watch: Watch) -> dict[str, Any] | str:
    """Return the next answer of the process that checks, or why there is none."""
    try:
        if not checker.poll(seconds):
            return f"it did not end within {seconds:.3g} s"
        given, answer = json.loads(checker.recv_bytes(LARGEST_ANSWER_BYTES))
    except (EOFError, ConnectionError):
        return watch.ended or CRASHED
    except (OSError, TypeError, ValueError):  # it has another form than the checker's answers
        return OWN_VERDICT
    return answer if given == token else OWN_VERDICT
