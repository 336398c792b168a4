"""A rank's process on another machine, and the far ends of its pipes, which a relay serves.

On the kernel's side, it is used like any other `WorkerHandle`.
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
"""The most bytes to read from a stream at a time."""

STREAMS = ("output", "stack", "wire", "status")
"""A process's streams, in the order of forwarding: output before the final message, and the exit code last."""


class Carrier(Protocol):
    """A carrier of requests to the process's machine: see `relay.Relay`.

    Attributes:
        name: of the machine.
        lost: why it is lost; empty if it is not.
        clock_ahead: seconds by which its `time.perf_counter` is ahead of the kernel's.
    """

    name: str
    lost: str
    clock_ahead: float

    def request(self, what: str, pid: int, value: object = None) -> None: ...


class FarEnds:
    """The far ends of a process's pipes, by stream."""

    def __init__(self, fds: dict[str, int]) -> None:
        self.fds = fds
        self._unread = dict.fromkeys(fds, b"")
        self._ended: set[str] = set()
        for fd in fds.values():
            os.set_blocking(fd, False)

    @property
    def full(self) -> str | None:
        """Return the stream that has no room for its data, if any; the streams after it in `STREAMS` wait."""
        return next((stream for stream in STREAMS if self._unread.get(stream)), None)

    def deliver(self, stream: str, data: bytes) -> None:
        """Add data of a stream; empty data means that the stream has ended."""
        self._unread[stream] += data
        if not data:
            self._ended.add(stream)
        self.flush()

    def flush(self) -> None:
        """Write as much as there is room for."""
        for stream in [stream for stream in STREAMS if stream in self.fds]:
            fd = self.fds[stream]
            try:
                while self._unread[stream]:
                    self._unread[stream] = self._unread[stream][os.write(fd, self._unread[stream]) :]
            except BlockingIOError:
                return
            except OSError:  # nobody reads it
                self._unread[stream] = b""
            if stream in self._ended:
                os.close(self.fds.pop(stream))

    def read_messages(self) -> bytes:
        """Return the bytes of messages from the kernel to the process."""
        try:
            return os.read(self.fds["wire"], CHUNK) if "wire" in self.fds else b""
        except OSError:  # nothing to read, or closed
            return b""

    def close(self) -> None:
        """Close all pipes, as if the process were dead."""
        while self.fds:
            os.close(self.fds.popitem()[1])
        self._unread.clear()


class RemoteWorker(WorkerHandle):
    """The handle of a process that is reached through a relay."""

    def __init__(self, pid: int, relay: Carrier) -> None:
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
        return [
            (number, _in_kernel_time(message, ahead) if isinstance(message, Finished) else message)
            for number, message in numbered
        ]

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


def _in_kernel_time(left: Finished, seconds: float) -> Finished:
    """Convert the times of `left` to the kernel's clock."""
    for call in left.calls:
        for name in ("issued", "matched", "done", "waited_from"):
            setattr(call.times, name, getattr(call.times, name) - seconds)
    entered, gone = left.span
    return replace(left, span=(entered - seconds, gone - seconds))
