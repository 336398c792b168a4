"""Limits on the time and memory of a process and everything that it started."""

import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import psutil

POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one notebook.

    Attributes:
        seconds: for its run, and again for its check.
        turn_seconds: of these, for one cell or the check of one exercise, so that an endless one leaves time for the
            rest.
        memory_bytes: resident.
        stopped: set to end everything at once.
    """

    seconds: float = 300.0
    turn_seconds: float = 100.0
    memory_bytes: int = 8 * 2**30
    stopped: threading.Event = field(default_factory=threading.Event, compare=False)


class Watch:
    """A process under limits, inside a `with`. At the end, it and every process that it was seen to start are killed.

    Args:
        pid: the process, which leads its process group.
        limits: for it and everything that it starts.
        seconds: the time left, if less than the limit.

    Attributes:
        ended: the limit that was passed, in words; empty while there is none.
    """

    def __init__(self, pid: int, limits: Limits, seconds: float | None = None) -> None:
        self.ended = ""
        self._limits, self._process = limits, psutil.Process(pid)
        self._seen = {self._process}
        self._deadline = time.monotonic() + (limits.seconds if seconds is None else seconds)
        self._over = threading.Event()
        self._poll = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._poll.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._poll.join()
        self._kill()

    def _watch(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            if self._limits.stopped.is_set():
                self.ended = "the grader was stopped"
            elif time.monotonic() > self._deadline:
                self.ended = f"it did not end within {self._limits.seconds:g} s"
            elif self._used_bytes() > self._limits.memory_bytes:
                self.ended = f"it used more than {self._limits.memory_bytes / 2**30:g} GiB of memory"
            if self.ended:
                self._kill()
                return

    def _used_bytes(self) -> int:
        """Return the resident memory. `resource.setrlimit` limits address space, of which threads reserve gigabytes."""
        with suppress(psutil.Error):
            self._seen.update(self._process.children(recursive=True))
        used = sum(map(_resident_bytes, self._seen))
        return used if used <= self._limits.memory_bytes else sum(map(_share_bytes, self._seen))

    def _kill(self) -> None:
        """Kill the process group, and the processes that have left it."""
        with suppress(psutil.Error):
            self._seen.update(self._process.children(recursive=True))
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a group of zombies
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in self._seen:
            with suppress(psutil.Error):
                process.kill()


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended
        return 0


def _share_bytes(process: psutil.Process) -> int:
    """Return the resident memory, of which what `n` processes share counts as 1/n. To ask Linux takes longer, and other
    systems do not say."""
    try:
        used = process.memory_full_info()
    except psutil.Error:  # it has ended
        return 0
    return int(getattr(used, "pss", used.rss))
