"""The relay between the kernel and the ranks of one other machine.

    RunLoop <-- pipes --> this relay's thread <-- ipyparallel --> host.Host, in an engine <-- pipes --> ranks

The thread calls `Host.exchange` again and again. Each exchange moves the bytes of all pipes in both directions, proves
that the kernel and the host are alive, and compares their clocks.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...errors import CourseError
from .remote_worker import FarEnds, RemoteWorker

ANSWER = 10.0
"""Seconds after which a host that has not answered is lost."""

WAIT = 0.003
"""Seconds that a host waits for news before it answers; the kernel's messages may be late by as much."""

SHORTEST, LONGEST = 0.001, 0.5
"""Limits of the seconds between two exchanges: a tenth of the time since the last data."""

SAMPLES = 64
"""The number of exchanges that compare two clocks. The quickest counts, because it is the most exact."""

Ask = Callable[..., Any]
"""Calls a method of the host: its name, its arguments, and `timeout` in seconds."""


class Relay:
    """The kernel's connection to one `host.Host`.

    Attributes:
        name: of the machine.
        ask: calls a method of the host.
        request_lock: held during such a call.
        lost: why the host is lost; empty if it is not.
        clock_ahead: seconds by which its `time.perf_counter` is ahead of the kernel's.
    """

    def __init__(self, name: str, ask: Ask) -> None:
        self.name, self.ask, self.request_lock = name, ask, threading.Lock()
        self.lost = ""
        self.clock_ahead = 0.0
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._requests: deque[tuple[str, int, Any]] = deque()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._ends: dict[int, FarEnds] = {}  # by pid; only the thread uses it
        self._begun = self._ended = 0  # exchanges
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"relay to {name}", daemon=True)
        self._thread.start()
        self.confirm()  # an exchange compares the clocks

    def adopt(self, pid: int) -> RemoteWorker:
        """Return the handle of a process that the host has started."""
        process = RemoteWorker(pid, self)
        with self._progress:
            if self.lost:
                process.far_ends.close()
            else:
                self.request("adopt", pid, process.far_ends)
        return process

    def request(self, what: str, pid: int, value: Any = None) -> None:
        """Queue a request; see `host.Request`."""
        self._requests.append((what, pid, value))
        self._hurry()

    def confirm(self) -> None:
        """Wait until the host has answered an exchange that starts from now on, or is lost."""
        with self._progress:
            wanted = self._begun + 1
            self._hurry()
            self._progress.wait_for(lambda: self.lost or self._ended >= wanted)

    def lose(self, why: str) -> None:
        """Give up the host: for this kernel, its ranks are dead."""
        with self._progress:
            self.lost = self.lost or why
            self._progress.notify_all()
        self._hurry()

    def close(self) -> None:
        """End the host's ranks."""
        if not self.lost:
            with suppress(CourseError), self.request_lock:  # the host and its ranks are gone
                self.ask("close", timeout=ANSWER)
        self.lose("it was closed")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def _hurry(self) -> None:
        with suppress(OSError):  # a byte is already waiting, or the relay is closed
            self._wake.send(b"!")

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        moved = time.monotonic()
        while not self.lost:
            requests = self._gather(min(LONGEST, max(SHORTEST, 0.1 * (time.monotonic() - moved))))
            try:
                news = self._exchange(requests)
            except Exception as error:  # of any kind: the host needs this thread
                self.lose(str(error))
                break
            for pid, stream, data in news:
                if pid in self._ends:
                    self._ends[pid].deliver(stream, data)
            if requests or news:
                moved = time.monotonic()
        for ends in (*self._ends.values(), *(value for what, _, value in self._requests if what == "adopt")):
            ends.close()

    def _gather(self, pause: float) -> list[tuple[str, int, Any]]:
        """Return the requests for the host, after `pause` seconds or as soon as there is one."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for ends in self._ends.values():
                for stream, fd in ends.fds.items():
                    events = selectors.EVENT_READ * (stream == "wire") | selectors.EVENT_WRITE * (stream == ends.full)
                    if events:
                        selector.register(fd, events)
            selector.select(pause)
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        requests = []
        for pid, ends in self._ends.items():
            ends.flush()
            if data := ends.read_messages():
                requests.append(("write", pid, data))
        while self._requests:
            what, pid, value = self._requests.popleft()
            if what == "adopt":
                self._ends[pid] = value
                continue
            if what == "close" and pid in self._ends:
                self._ends.pop(pid).close()
            requests.append((what, pid, value))
        return requests

    def _exchange(self, requests: list[tuple[str, int, Any]]) -> list[tuple[int, str, bytes]]:
        full = [pid for pid, ends in self._ends.items() if ends.full]
        with self.request_lock:
            with self._progress:
                self._begun += 1
            sent = time.perf_counter()
            news: list[tuple[int, str, bytes]]
            news, arrived, left = self.ask("exchange", requests, full, WAIT, timeout=ANSWER)
            received = time.perf_counter()
        self._samples.append((received - sent - (left - arrived), (arrived - sent + left - received) / 2))
        self.clock_ahead = min(self._samples)[1]
        with self._progress:
            self._ended = self._begun
            self._progress.notify_all()
        return news
