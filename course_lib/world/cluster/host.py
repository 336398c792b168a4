"""The ranks of one machine of a cluster. This module runs on that machine, in an ipyparallel engine.

A host does for its ranks what the kernel does for local ones: a fork server starts them, and they end with the host.
The kernel calls `exchange` again and again, which carries all data between ranks and kernel. So every byte goes through
ipyparallel's channels, and only the store, in which the ranks find each other, listens on an address.
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
"""An action on a process: "write" with bytes for its `wire`, "signal" with a number, "kill" or "close"."""

News = tuple[int, str, bytes]
"""A process, one of its streams (an attribute of `WorkerHandle`), and the data read; empty if the stream has ended."""

Answer = tuple[list[News], float, float]
"""The news, and when `exchange` was entered and left, in seconds of this machine's `time.perf_counter`."""


class Host:
    """The processes of one kernel on this machine.

    Args:
        silence: seconds without an exchange after which the host ends its ranks, because the kernel may be dead.

    Attributes:
        silent: this has happened.
    """

    def __init__(self, silence: float) -> None:
        self.silent = False
        self._silence, self._last_exchange = silence, time.monotonic()
        self._server = ForkServer()
        self._processes: dict[int, WorkerHandle] = {}
        self._selector = selectors.DefaultSelector()
        self._store: dist.TCPStore | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="course-watch", daemon=True).start()

    def machine(self) -> Machine:
        """Return the description of this machine."""
        return Machine.here(_address())

    def listen(self) -> int:
        """Return the port of the store, which listens only on this machine's `Machine.address`."""
        if self._store is None:
            address = _address()
            with socket.socket() as listening:
                listening.bind((address, 0))
                listening.listen()
                port = listening.getsockname()[1]
                self._store = dist.TCPStore(  # by default, torch listens on every address
                    address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
                )
        return self._store.port

    def spawn(self, number: int) -> list[int]:
        """Start `number` processes, and return their pids."""
        with self._lock:
            spawned = [self._server.spawn() for _ in range(number)]
            for process in spawned:
                self._processes[process.pid] = process
                for stream, fd in _streams(process).items():
                    self._selector.register(fd, selectors.EVENT_READ, (process.pid, stream))
            self._last_exchange = time.monotonic()  # the first waits until the server has loaded torch
        return [process.pid for process in spawned]

    def exchange(self, requests: Sequence[Request], full: Collection[int], wait: float) -> Answer:
        """Carry out the requests, and return the news.

        Args:
            requests: in order.
            full: processes for which the kernel has no more room now.
            wait: the most seconds to wait for news.
        """
        arrived = time.perf_counter()
        with self._lock, interrupts.put_off() as late:
            if self.silent:
                raise TimeoutError(f"it had heard nothing from the kernel for {self._silence:g} s, and ended its ranks")
            for request, pid, value in requests:
                if pid in self._processes:
                    self._do(request, self._processes[pid], value)
            news = self._read_ready(full, wait)
            self._last_exchange = time.monotonic()
            late.clear()  # the kernel passes an interrupt on
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
            with suppress(WorkerDied):  # its status will report it
                process.write(value)
        elif request == "signal":
            process.signal(value)
        elif request == "kill":
            process.kill()
        elif request == "close":
            for fd in _streams(process).values():
                self._unregister(fd)
            self._processes.pop(process.pid).close()

    # -- news ------------------------------------------------------------------------------------------------------

    def _read_ready(self, full: Collection[int], wait: float) -> list[News]:
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
            self._unregister(fd)
        return data

    def _unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    # -- silence ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._silence / 4)):
            with self._lock:
                if time.monotonic() - self._last_exchange > self._silence:
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
    """Return the address where other machines reach this one.

    It is the address of the interface `$GLOO_SOCKET_IFNAME`, or that of this engine's connection to the controller.
    """
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
