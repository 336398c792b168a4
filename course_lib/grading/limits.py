"""Limits for a process and all that it has started.

[Note: what a process leaves behind]
A process that has detached itself is nobody's child, and a fork bomb has new ones while it is being killed. So each is
known by its environment, in which `COURSE_HOME` is in the scratch folder of its notebook; all are stopped before the
first is killed; and this goes on until no other comes. A look must be shorter than such a process lives: it reads of
those alone that the last one did not see. On Linux a process that has cleaned its environment is found too, among the
children of its `keeper`.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

POLL_SECONDS = 0.2
KILL_SECONDS = 10.0
KEEPER = (sys.executable, str(Path(__file__).with_name("keeper.py"))) if sys.platform == "linux" else ()
QUIET_SECONDS = 0.1  # for so long nobody new must be found: one that starts the next and ends may slip through a look


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one notebook may use.

    Attributes:
        seconds: to run, and again to be checked.
        turn_seconds: of these, for one cell, or the check of one exercise: an endless one leaves time for the others.
        memory_bytes: resident.
        output_bytes: of text and pictures shown.
    """

    seconds: float = 300.0
    turn_seconds: float = 100.0
    memory_bytes: int = 8 * 2**30
    output_bytes: int = 20 * 10**6


class Watch:
    """A process under limits. Its clock starts now.

    Args:
        pid: which one.
        limits: for it and all that it starts.
        home: what `COURSE_HOME` is for it.
        seconds: what is left of the time, if less than the limit.
    """

    def __init__(self, pid: int, limits: Limits, home: Path, seconds: float | None = None) -> None:
        self._limits, self._home = limits, home
        self._process = psutil.Process(pid)
        self._deadline = time.monotonic() + (limits.seconds if seconds is None else seconds)
        self._next_look = 0.0
        self.begin_turn()

    def begin_turn(self) -> None:
        """The next cell, or exercise, begins."""
        self._turn_began = time.monotonic()

    def turn_exceeded(self) -> bool:
        """Whether this cell, or exercise, has had its share of the time."""
        return time.monotonic() - self._turn_began > self._limits.turn_seconds

    def exceeded(self) -> str:
        """Which limit has been passed, in words; empty while none has. It looks every POLL_SECONDS at most."""
        now = time.monotonic()
        if now < self._next_look:
            return ""
        self._next_look = now + POLL_SECONDS
        if now > self._deadline:
            return f"it did not end within {self._limits.seconds:g} s"
        if self._used_bytes() > self._limits.memory_bytes:
            return f"it used more than {self._limits.memory_bytes / 2**30:g} GiB of memory"
        return ""

    def gone(self) -> bool:
        """Whether the process has ended."""
        return not _runs(self._process)

    @property
    def seconds_left(self) -> float:
        """Until the deadline."""
        return max(0.0, self._deadline - time.monotonic())

    def kill(self) -> None:
        """End the process and all that it has started, and wait for their end.

        Both until nobody new comes, and then until all have ended, it takes KILL_SECONDS at most.
        """
        stopped = []
        for process in self._everybody():
            stopped.append(process)
            with suppress(psutil.Error):
                process.suspend()  # at once: it may be about to start another, and end
        for process in stopped:
            with suppress(psutil.Error):
                process.kill()
        deadline = time.monotonic() + KILL_SECONDS
        # The signal takes its time on a busy machine. psutil.wait_procs would wait for zombies of others, too.
        while any(map(_runs, stopped)) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _used_bytes(self) -> int:
        used = 0
        for process in self._family():
            with suppress(psutil.Error):
                used += process.memory_info().rss
        return used

    def _family(self) -> set[psutil.Process]:
        with suppress(psutil.Error):
            return {self._process, *self._process.children(recursive=True)}
        return set()

    def _everybody(self) -> Iterator[psutil.Process]:
        """The family, and those that have left it as they come, until none has come for QUIET_SECONDS."""
        last_came = time.monotonic()
        deadline = last_came + KILL_SECONDS
        family: set[psutil.Process] = set()
        known: set[int] = set()
        while time.monotonic() < min(last_came + QUIET_SECONDS, deadline):
            yield from (new := self._family() - family)
            if new:
                family |= new
                last_came = time.monotonic()
            pids = psutil.pids()
            for pid in reversed(pids):  # the youngest first, as they are the first to be gone
                if pid not in known and (process := self._stray(pid)):
                    last_came = time.monotonic()
                    yield process
            known = set(pids)

    def _stray(self, pid: int) -> psutil.Process | None:
        """The process of that number, if it was started under this watch, whosever child it is now."""
        with suppress(psutil.Error, OSError):  # it is gone, or somebody else's
            process = psutil.Process(pid)
            if process.environ().get("COURSE_HOME") == str(self._home) and _runs(process):
                return process
        return None


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended; one that has stays a while, as a zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
