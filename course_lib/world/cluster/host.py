"""The ranks of one machine of a cluster. This module runs there, in an ipyparallel engine.

A host does for its ranks what the kernel does for those of its own machine: a fork server gives birth to them, and they
end when it does. What ranks and kernel tell each other goes through `exchange`, which the kernel calls again and again.
So every byte takes ipyparallel's channels, and the only address that is listened on is that of the store in which the
ranks find each other.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import psutil
import torch.distributed as dist
from traitlets.config import Application

from ..processes.placement import Machine
from ..processes.worker_handle import ForkServer, WorkerDied, WorkerHandle
from ..rank_threads import interrupts
from .remote_worker import CHUNK, STREAMS

Request = tuple[str, int, Any]
"""What is to be done with a process: "write" with bytes for its wire, "signal" with a number, "kill", "close"."""

News = tuple[int, str, bytes]
"""Whose process, which of its streams (an attribute of `Process`), and what came; nothing, where it has ended."""

Answer = tuple[list[News], float, float]
"""The news, and when `exchange` was entered and left, in seconds of this machine's `time.perf_counter`."""


class Host:
    """What a kernel has on this machine.

    Args:
        silence: seconds without an exchange after which the kernel is taken for dead, and ranks are ended.

    Attributes:
        silent: that has happened.
    """

    def __init__(self, silence: float) -> None:
        self.silent = False
        self._silence, self._heard = silence, time.monotonic()
        self._server = ForkServer()
        self._processes: dict[int, WorkerHandle] = {}
        self._selector = selectors.DefaultSelector()
        self._store: dist.TCPStore | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="course-watch", daemon=True).start()

    def machine(self) -> Machine:
        """What there is to know of this machine."""
        return Machine.here(_address())

    def listen(self) -> int:
        """The port of the store, which listens on this machine's `Machine.address` alone."""
        if self._store is None:
            address = _address()
            with socket.socket() as listening:
                listening.bind((address, 0))
                listening.listen()
                port = listening.getsockname()[1]
                self._store = dist.TCPStore(  # left alone, torch listens on every address
                    address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
                )
        return self._store.port

    def spawn(self, number: int) -> list[int]:
        """Give birth to so many: their pids."""
        with self._lock:
            born = [self._server.spawn() for _ in range(number)]
            for process in born:
                self._processes[process.pid] = process
                for stream, fd in _streams(process).items():
                    self._selector.register(fd, selectors.EVENT_READ, (process.pid, stream))
            self._heard = time.monotonic()  # the first waits until the server has loaded torch
        return [process.pid for process in born]

    def exchange(self, requests: Sequence[Request], full: Collection[int], wait: float) -> Answer:
        """Do what is asked for, and tell what is new.

        Args:
            requests: in their order.
            full: processes of which the kernel has no room for more now.
            wait: seconds that this takes at most where nothing is new.
        """
        arrived = time.perf_counter()
        with self._lock, interrupts.put_off() as late:
            if self.silent:
                raise TimeoutError(f"it had heard nothing from the kernel for {self._silence:g} s, and ended its ranks")
            for request, pid, value in requests:
                if pid in self._processes:
                    self._do(request, self._processes[pid], value)
            news = self._hear(full, wait)
            self._heard = time.monotonic()
            late.clear()  # an interrupt is for the kernel, which passes it on
        return news, arrived, time.perf_counter()

    def close(self) -> None:
        """End every rank."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            for process in self._processes.values():
                process.close()
            self._server.close()
            self._selector.close()
            self._store = None

    # -- requests --------------------------------------------------------------------------------------------------

    def _do(self, request: str, process: WorkerHandle, value: Any) -> None:
        if request == "write":
            with suppress(WorkerDied):  # its status says so
                process.write(value)
        elif request == "signal":
            process.signal(value)
        elif request == "kill":
            process.kill()
        elif request == "close":
            for fd in _streams(process).values():
                self._deaf_to(fd)
            self._processes.pop(process.pid).close()

    # -- news ------------------------------------------------------------------------------------------------------

    def _hear(self, full: Collection[int], wait: float) -> list[News]:
        ready = {key.data: key.fd for key, _ in self._selector.select(wait)}
        return [
            (pid, stream, self._read(ready[pid, stream]))
            for pid, stream in sorted(ready, key=lambda source: STREAMS.index(source[1]))
            if pid not in full
        ]

    def _read(self, fd: int) -> bytes:
        try:
            data = os.read(fd, CHUNK)
        except ConnectionResetError:
            data = b""
        if not data:
            self._deaf_to(fd)
        return data

    def _deaf_to(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    # -- silence ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._silence / 4)):
            with self._lock:
                if time.monotonic() - self._heard > self._silence:
                    self.silent = True
                    self._end()


def _streams(process: WorkerHandle) -> dict[str, int]:
    return {
        "wire": process.wire.fileno(),
        "output": process.output,
        "stack": process.stack,
        "status": process.status,
    }


def _address() -> str:
    """Where the other machines reach this one: the address of the interface that `$GLOO_SOCKET_IFNAME` names, if it
    is set; or else the one from which this engine reaches the controller."""
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if name is not None:
        addresses = [one.address for one in psutil.net_if_addrs()[name] if one.family == socket.AF_INET]
    else:
        engine: Any = Application.instance()
        addresses = [
            one.laddr.ip
            for one in psutil.Process().net_connections("tcp4")
            if one.raddr and one.raddr.port == engine.connection_info["registration"]
        ]
    return str(addresses[0])
