"""Limits on the time, memory and output of a process and everything that it started.

[Note: processes left behind]
A detached process is nobody's child, and a fork bomb starts new processes while it is being killed. So processes are
recognized by their environment: `COURSE_HOME` is in the scratch folder of the notebook. All are stopped before the
first is killed, and the search is repeated until it finds no new one. A search must be shorter than the life of such a
process, so it reads only the processes that the last search did not see. On Linux a process that has cleared its
environment is found too, among the children of its `reaper`.
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
REAPER = (sys.executable, str(Path(__file__).with_name("reaper.py"))) if sys.platform == "linux" else ()
QUIET_SECONDS = 0.1  # no new process for this long: one that starts the next and ends may escape a search


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one notebook.

    Attributes:
        seconds: for its run, and again for its check.
        turn_seconds: of these, for one cell or the check of one exercise, so that an endless one leaves time for the
            rest.
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
        pid: the process.
        limits: for it and everything that it starts.
        home: its `COURSE_HOME`.
        seconds: the time left, if less than the limit.
    """

    def __init__(self, pid: int, limits: Limits, home: Path, seconds: float | None = None) -> None:
        self._limits, self._home = limits, home
        self._process = psutil.Process(pid)
        self._deadline = time.monotonic() + (limits.seconds if seconds is None else seconds)
        self._next_look = 0.0
        self.begin_turn()

    def begin_turn(self) -> None:
        """Start the clock of the next cell or exercise."""
        self._turn_began = time.monotonic()

    def turn_exceeded(self) -> bool:
        """Return whether this cell or exercise has used up its time."""
        return time.monotonic() - self._turn_began > self._limits.turn_seconds

    def exceeded(self) -> str:
        """Return the exceeded limit, in words, or an empty text. It checks at most every POLL_SECONDS."""
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
        """Return whether the process has ended."""
        return not _runs(self._process)

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline."""
        return max(0.0, self._deadline - time.monotonic())

    def kill(self) -> None:
        """Kill the process and everything that it started, and wait until all have ended.

        The search and the wait take KILL_SECONDS each, at most.
        """
        stopped = []
        for process in self._everybody():
            stopped.append(process)
            with suppress(psutil.Error):
                process.suspend()  # now: it may be about to start another process, and end
        for process in stopped:
            with suppress(psutil.Error):
                process.kill()
        deadline = time.monotonic() + KILL_SECONDS
        # The signal takes time on a busy machine. psutil.wait_procs would also wait for other programs' zombies.
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
        """Yield the family, and detached processes as they are found, until none is new for QUIET_SECONDS."""
        last_found = time.monotonic()
        deadline = last_found + KILL_SECONDS
        family: set[psutil.Process] = set()
        known: set[int] = set()
        while time.monotonic() < min(last_found + QUIET_SECONDS, deadline):
            yield from (new := self._family() - family)
            if new:
                family |= new
                last_found = time.monotonic()
            pids = psutil.pids()
            for pid in reversed(pids):  # the youngest first, because they end first
                if pid not in known and (process := self._stray(pid)):
                    last_found = time.monotonic()
                    yield process
            known = set(pids)

    def _stray(self, pid: int) -> psutil.Process | None:
        """Return the process with this number if it was started under this watch, whatever its parent is now."""
        with suppress(psutil.Error, OSError):  # it has ended, or belongs to another user
            process = psutil.Process(pid)
            if process.environ().get("COURSE_HOME") == str(self._home) and _runs(process):
                return process
        return None


def _runs(process: psutil.Process) -> bool:
    """Return whether the process has not ended. An ended process remains for a while, as a zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
