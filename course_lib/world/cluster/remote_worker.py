"""A rank's process on another machine, and the far ends of its pipes, which a relay keeps filled.

For whoever is on the kernel's side it is a `Process` like any other.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from ..errors.exit_status import machine_lost
from ..processes.messages import Finished, FromRank, Job, ToRank
from ..processes.worker_handle import WorkerHandle

CHUNK = 1 << 20
"""The most bytes that are taken from a stream at a time."""

STREAMS = ("output", "stack", "wire", "status")
"""What a process tells, in the order in which it goes on: what it has printed is here when it says that it is done, and
how it ended when all that it has said is."""


class Machinery(Protocol):
    """What carries requests to the machine that a process is on: see `relay.Relay`.

    Attributes:
        name: of the machine.
        lost: why it is given up; empty while it is not.
        clock_ahead: by how many seconds its `time.perf_counter` is ahead of the kernel's.
    """

    name: str
    lost: str
    clock_ahead: float

    def request(self, what: str, pid: int, value: object = None) -> None: ...


class FarEnds:
    """The other ends of a process's pipes, by stream."""

    def __init__(self, fds: dict[str, int]) -> None:
        self.fds = fds
        self._unread = dict.fromkeys(fds, b"")
        self._ended: set[str] = set()
        for fd in fds.values():
            os.set_blocking(fd, False)

    @property
    def full(self) -> str | None:
        """The stream that has no room for what came, so that what comes after it in `STREAMS` waits, too."""
        return next((stream for stream in STREAMS if self._unread.get(stream)), None)

    def deliver(self, stream: str, data: bytes) -> None:
        """That has come; or nothing, where the stream has ended."""
        self._unread[stream] += data
        if not data:
            self._ended.add(stream)
        self.flush()

    def flush(self) -> None:
        """Hand over what there is room for."""
        for stream in [stream for stream in STREAMS if stream in self.fds]:
            fd = self.fds[stream]
            try:
                while self._unread[stream]:
                    self._unread[stream] = self._unread[stream][os.write(fd, self._unread[stream]) :]
            except BlockingIOError:
                return
            except OSError:  # nobody reads any more
                self._unread[stream] = b""
            if stream in self._ended:
                os.close(self.fds.pop(stream))

    def said(self) -> bytes:
        """What the kernel tells the process."""
        try:
            return os.read(self.fds["wire"], CHUNK) if "wire" in self.fds else b""
        except OSError:  # nothing, or nobody
            return b""

    def close(self) -> None:
        """Be a process that is gone."""
        while self.fds:
            os.close(self.fds.popitem()[1])
        self._unread.clear()


class RemoteWorker(WorkerHandle):
    """A process that a relay speaks for."""

    def __init__(self, pid: int, relay: Machinery) -> None:
        mine, theirs = socket.socketpair()
        pipes = {stream: os.pipe() for stream in ("output", "stack", "status")}
        super().__init__(pid, mine, *(read for read, _ in pipes.values()))
        self.far_ends = FarEnds({"wire": theirs.detach()} | {stream: write for stream, (_, write) in pipes.items()})
        self._relay = relay

    def send(self, message: ToRank) -> None:
        if isinstance(message, Job):
            message = replace(message, started=message.started + self._relay.clock_ahead)
        super().send(message)

    def receive(self) -> list[tuple[int, FromRank]] | None:
        ahead, numbered = self._relay.clock_ahead, super().receive()
        if numbered is None:
            return None
        return [(number, _earlier(told, ahead) if isinstance(told, Finished) else told) for number, told in numbered]

    def dead(self) -> bool:
        if self.exitcode is None and self._relay.lost:
            self.exitcode = -signal.SIGKILL
        return super().dead()

    @property
    def machine_lost(self) -> bool:
        return bool(self._relay.lost)

    @property
    def how_it_died(self) -> str:
        return machine_lost(self._relay.name, self._relay.lost) if self._relay.lost else super().how_it_died

    def signal(self, number: int) -> None:
        self._relay.request("signal", self.pid, number)

    def kill(self) -> None:
        self._relay.request("kill", self.pid)

    def close(self) -> None:
        self._relay.request("close", self.pid)
        with suppress(OSError):
            self.wire.close()
        for fd in (self.output, self.stack, self.status):
            os.close(fd)


def _earlier(left: Finished, seconds: float) -> Finished:
    """In the time of the kernel's clock."""
    for call in left.calls:
        for name in ("issued", "matched", "done", "waited_from"):
            setattr(call.times, name, getattr(call.times, name) - seconds)
    entered, gone = left.span
    return replace(left, span=(entered - seconds, gone - seconds))
