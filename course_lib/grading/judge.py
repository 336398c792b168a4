"""Checks the functions that a notebook handed in, in a fresh process: see `checker`."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from .limits import POLL_SECONDS, Limits, Watch
from .report import Grade

CRASHED = "the function ended the process that checked it: os._exit, a crash, or no memory left"


def judge(solutions: Mapping[str, Path], scratch: Path, limits: Limits) -> Iterator[Grade]:
    """Check each solution. One that takes the process with it leaves the others to the next process.

    Args:
        solutions: the file of each packed function, by exercise.
        scratch: a folder for the process, which works in `scratch/work`.
        limits: `limits.seconds` are for all of them together.
    """
    waiting, seconds = dict(solutions), limits.seconds
    while waiting:
        answers, ended, seconds = _checked(waiting, scratch, limits, seconds)
        for answer in answers:
            del waiting[answer["exercise"]]
            yield Grade(**answer)
        if waiting:
            name = next(iter(waiting))  # the one that was being checked
            del waiting[name]
            yield Grade(exercise=name, status="error", observed=ended or CRASHED)


def _checked(
    solutions: Mapping[str, Path], scratch: Path, limits: Limits, seconds: float
) -> tuple[list[dict[str, Any]], str, float]:
    """The answers of one process, which limit ended it if one did, and the seconds that are left."""
    jobs = "".join(json.dumps([name, str(file)]) + "\n" for name, file in solutions.items())
    environment = os.environ | {"COURSE_HOME": str(scratch / "home")}
    ended = ""
    with tempfile.TemporaryFile() as questions, tempfile.TemporaryFile() as answers:
        questions.write(jobs.encode())
        questions.seek(0)
        command = [sys.executable, "-m", f"{__package__}.checker"]
        with subprocess.Popen(
            command, stdin=questions, stdout=answers, stderr=subprocess.DEVNULL, cwd=scratch / "work", env=environment
        ) as process:
            watch = Watch(process.pid, limits, seconds)
            while not ended and process.poll() is None:
                ended = watch.exceeded()
                _wait(process)
            watch.kill()
        return list(_read(answers)), ended, watch.seconds_left


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return


def _read(answers: IO[bytes]) -> Iterator[dict[str, Any]]:
    answers.seek(0)
    for line in answers:
        if line.endswith(b"\n"):  # the last may have been cut off
            yield json.loads(line)
