"""Check the functions that a notebook handed in, in a fresh process: see `checker`."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .limits import POLL_SECONDS, REAPER, Limits, Watch
from .report import Grade

CRASHED = "the function ended the process that checked it: os._exit, a crash, or no memory left"
OWN_VERDICT = "the function wrote a verdict of its own where the checker writes its answers"
NO_TIME = "it was not checked: those before it took all of the time"


def judge(solutions: Mapping[str, Path], scratch: Path, limits: Limits) -> Iterator[Grade]:
    """Check each solution. If one ends the process, the next process checks the rest.

    Args:
        solutions: the file of each packed function, by exercise.
        scratch: a folder for the process, which works in `scratch/work`.
        limits: `limits.seconds` are for all of them together.
    """
    waiting, seconds = dict(solutions), limits.seconds
    while waiting and seconds > 0:
        answers, ended, seconds = _checked(waiting, scratch, limits, seconds)
        for name, found in answers.items():
            if waiting.pop(name, None) is not None:
                forged = Grade(exercise=name, status="error", observed=OWN_VERDICT)
                yield Grade(**found[0]) if len(found) == 1 and found[0] else forged
        if waiting:
            name = next(iter(waiting))  # this one was being checked
            del waiting[name]
            yield Grade(exercise=name, status="error", observed=ended or CRASHED)
    for name in waiting:
        yield Grade(exercise=name, status="error", observed=NO_TIME)


def _checked(
    solutions: Mapping[str, Path], scratch: Path, limits: Limits, seconds: float
) -> tuple[dict[str, list[dict[str, Any]]], str, float]:
    """Return one process's answers by exercise, the limit that ended it, if any, and the seconds left."""
    token = secrets.token_hex()
    jobs = json.dumps([token, *((name, str(file)) for name, file in solutions.items())]) + "\n"
    home, work = scratch / "home", scratch / "work"
    if not work.is_dir():  # the notebook has deleted or replaced it
        work.unlink(missing_ok=True)
        work.mkdir(parents=True)
    ended = ""
    with tempfile.TemporaryFile() as questions, tempfile.TemporaryFile() as answers:
        questions.write(jobs.encode())
        questions.seek(0)
        with subprocess.Popen(
            # -P: do not import the checker from a folder in which the notebook could write.
            [*REAPER, sys.executable, "-P", "-m", f"{__package__}.checker"],
            stdin=questions,
            stdout=answers,
            stderr=subprocess.DEVNULL,
            cwd=work,
            env=os.environ | {"COURSE_HOME": str(home), "TMPDIR": str(scratch)},
            start_new_session=True,  # a signal to its group does not reach the grader
        ) as process:
            watch = Watch(process.pid, limits, home, seconds)
            try:
                ended = _watched(process, watch, limits, answers)
            finally:
                watch.kill()
        return _read(answers, token), ended, watch.seconds_left


def _watched(process: subprocess.Popen[bytes], watch: Watch, limits: Limits, answers: IO[bytes]) -> str:
    """Wait for the end of a process, and return the limit that it passed, if any.

    No exercise's time runs until the process is ready.
    """
    answered_bytes = 0
    while process.poll() is None:
        ended = watch.exceeded()
        if ended:
            return ended
        if answered_bytes != (answered_bytes := os.fstat(answers.fileno()).st_size):
            watch.begin_turn()
        elif answered_bytes and watch.turn_exceeded():
            return f"it did not end within {limits.turn_seconds:g} s"
        _wait(process)
    return ""


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return


def _read(answers: IO[bytes], token: str) -> dict[str, list[dict[str, Any]]]:
    """Return the answers by exercise: one each, unless the checked function has written there too.

    An answer without the token counts as an empty answer.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    answers.seek(0)
    for line in answers:
        with suppress(ValueError, TypeError, KeyError):  # cut off, or not written by the checker
            given, answer = json.loads(line)
            found.setdefault(answer["exercise"], []).append(answer if given == token else {})
    return found
