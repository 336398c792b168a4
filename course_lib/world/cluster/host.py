"""The workers of one machine of a cluster. This module runs on that machine, in an ipyparallel engine.

A host does for its workers what the kernel does for local ones: the fork server starts them, and they end with the
host. The kernel connects to the host, and twice to each worker: for messages and for output.
"""

import atexit
import os
import socket
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Listener, wait
from typing import Any

import psutil
import torch.distributed as dist
from traitlets.config import Application

from ...errors import CourseError
from ..processes.placement import Machine, machine_name
from ..processes.worker_handle import Process, start_server
from .remote import ANSWER, tuned

__all__ = ["machine_name", "open_host"]


def open_host(silence: float) -> tuple[Machine, tuple[str, int], bytes]:
    """Open a host in this engine for one kernel. Return this machine, and the host's address and key.

    It ends its workers when the kernel ends, or when the kernel's machine has not answered for `silence` seconds.
    """
    host = Host(_address(), silence)
    return Machine.here(host.address[0]), host.address, host.key


class Host:
    """The workers of one kernel on this machine. Its methods without an underscore are the kernel's requests."""

    def __init__(self, address: str, silence: float) -> None:
        self.key = os.urandom(32)
        self._listener = Listener((address, 0), backlog=128, authkey=self.key)
        self.address: tuple[str, int] = self._listener.address
        self._processes: dict[int, Process] = {}
        self._store: dist.TCPStore | None = None
        start_server()
        atexit.register(self._kill_all)  # multiprocessing would wait for them
        threading.Thread(target=self._serve, args=(silence,), name="course host", daemon=True).start()

    def clock(self) -> float:
        return time.perf_counter()

    def listen(self) -> int:
        """Return the port of the store, which listens only on this machine's `Machine.address`."""
        if self._store is None:
            listening = socket.create_server((self.address[0], 0))
            address, port = listening.getsockname()
            self._store = dist.TCPStore(  # by default, torch listens on every address
                address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )
        return self._store.port

    def spawn(self, number: int) -> list[int]:
        """Start `number` workers, to each of which the kernel connects twice. Return their pids."""
        connections = [tuned(self._listener.accept(), ANSWER) for _ in range(2 * number)]
        spawned = [Process(*connections[first : first + 2]) for first in range(0, 2 * number, 2)]
        self._processes |= {process.pid: process for process in spawned}
        return [process.pid for process in spawned]

    def kill(self, pid: int, number: int) -> None:
        """Send a signal to a worker, if it is alive."""
        if pid in self._processes:
            self._processes[pid].kill(number)

    def _serve(self, silence: float) -> None:
        try:
            with self._listener, tuned(self._listener.accept(), silence) as kernel:
                while True:
                    if kernel in wait([kernel, *(process.sentinel for process in self._processes.values())]):
                        kernel.send(("answer", self._answer(*kernel.recv())))
                    self._report_deaths(kernel)
        except (EOFError, OSError):  # the kernel is gone
            self._kill_all()
            atexit.unregister(self._kill_all)

    def _answer(self, request: str, arguments: Sequence[Any]) -> Any:
        try:
            return getattr(self, request)(*arguments)
        except Exception as error:  # the kernel reports it
            return CourseError(f"World(cluster=...): {error}")

    def _report_deaths(self, kernel: Connection) -> None:
        for pid, process in list(self._processes.items()):
            if process.exitcode is not None:
                kernel.send(("death", (pid, process.exitcode, process.stack())))
                self._processes.pop(pid).close()

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()


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
