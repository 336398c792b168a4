"""Limits for a process and all that it has started."""

import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one notebook may use: seconds to run, and again to be checked; resident memory; text and pictures shown."""

    seconds: float = 300.0
    memory_bytes: int = 8 * 2**30
    output_bytes: int = 20 * 10**6


class Watch:
    """A process under limits. Its clock starts now.

    seconds: what is left of the time, if less than the limit.
    """

    def __init__(self, pid: int, limits: Limits, seconds: float | None = None) -> None:
        self._limits = limits
        self._process = psutil.Process(pid)
        self.seconds = limits.seconds if seconds is None else seconds
        self._deadline = time.monotonic() + self.seconds
        self._next_look = 0.0

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
        try:
            return bool(self._process.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def kill(self) -> None:
        """End the process and all that it has started."""
        for process in reversed(self._family()):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _used_bytes(self) -> int:
        used = 0
        for process in self._family():
            with suppress(psutil.Error):
                used += process.memory_info().rss
        return used

    def _family(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [self._process, *self._process.children(recursive=True)]
        return []
