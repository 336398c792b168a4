"""The kernel's side of a `host.Host`, and of its workers."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection
from typing import Any

from ...errors import CourseError
from ..errors.exit_status import machine_lost
from ..processes.placement import Machine
from ..processes.worker_handle import Process, WorkerHandle
from ..rank_threads import interrupts

ANSWER = 10.0  # seconds after which a machine that does not answer is lost


def tuned(connection: Connection, silence: float) -> Connection:
    """Return a connection that sends at once, and that breaks when the other machine has not answered for `silence`
    seconds."""
    pause = max(1, int(silence / 4))
    options = {"NODELAY": 1, "KEEPIDLE": pause, "KEEPINTVL": pause, "USER_TIMEOUT": int(1000 * silence)}
    with socket.socket(fileno=os.dup(connection.fileno())) as its_socket:
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, f"TCP_{name}"):  # Linux has all of them
                its_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)
    return connection


class RemoteMachine:
    """The kernel's connection to the host that an engine runs on a machine.

    Attributes:
        deaths: exit codes and stacks of workers that have died, by pid.
        lost: why the machine is lost; empty if it is not.
        clock_ahead: seconds by which its `time.perf_counter` is ahead of the kernel's.
    """

    def __init__(self, engine: int, machine: Machine, address: tuple[str, int], key: bytes) -> None:
        self.machine, self._engine, self._address, self._key = machine, engine, address, key
        self.deaths: dict[int, tuple[int, str]] = {}
        self.lost = ""
        try:
            self.connection = self._connect()
        except OSError as error:
            raise CourseError(
                f"World(cluster=...): the machine {machine.name!r} cannot be reached from this kernel at "
                f"{address[0]}:{address[1]} ({error}). Open its ports for this machine, or start its engine with "
                "GLOO_SOCKET_IFNAME=eth0, for example, to name a network interface that can be reached."
            ) from None

    def compare_clocks(self) -> None:
        """Set `clock_ahead`, from the quickest of some comparisons."""
        samples = []
        for _ in range(8):
            sent = time.perf_counter()
            there: float = self.ask("clock")
            received = time.perf_counter()
            samples.append((received - sent, there - (sent + received) / 2))
        self.clock_ahead = min(samples)[1]

    def spawn(self, number: int) -> list[WorkerHandle]:
        """Start workers; raise a CourseError if the machine cannot."""
        with self._talking():
            self.connection.send(("spawn", (number,)))
            connections = [self._connect() for _ in range(2 * number)]
            pids = self._answer()
        pairs = zip(connections[::2], connections[1::2], pids, strict=True)
        return [WorkerHandle(wire, output, RemoteProcess(pid, self)) for wire, output, pid in pairs]

    def ask(self, request: str, *arguments: Any) -> Any:
        """Call a method of the host, and return its result; raise a CourseError if the machine is lost."""
        with self._talking():
            self.connection.send((request, arguments))
            return self._answer()

    def update(self) -> None:
        with suppress(CourseError), self._talking():
            while not self.lost and self.connection.poll():
                self._receive()

    def _connect(self) -> Connection:
        return tuned(Client(self._address, authkey=self._key), ANSWER)

    def _receive(self) -> tuple[str, Any]:
        kind, content = self.connection.recv()
        if kind == "death":
            pid, exitcode, stack = content
            self.deaths[pid] = exitcode, stack
        return kind, content

    def _answer(self) -> Any:
        while True:
            kind, content = self._receive()
            if kind == "answer":
                if isinstance(content, CourseError):
                    raise content
                return content

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Give up the machine, and raise a CourseError, if the connection breaks inside the block."""
        try:
            with interrupts.put_off():  # an answer that nobody reads would be the next one's
                yield
        except (EOFError, OSError) as error:
            ended = isinstance(error, EOFError | ConnectionError)
            why = f"its engine {self._engine} has " + ("ended" if ended else f"not answered for {ANSWER:g} s")
            self.lost = self.lost or why
            raise CourseError(
                f"World: the machine {self.machine.name!r} is lost: {self.lost}. Run again, to go on without it."
            ) from None


class RemoteProcess(Process):
    """A worker's process on another machine."""

    def __init__(self, pid: int, host: RemoteMachine) -> None:
        self.pid, self.sentinel, self._host = pid, host.connection, host
        host.deaths.pop(pid, None)  # of an earlier process with this number

    @property
    def clock_ahead(self) -> float:  # type: ignore[override]
        return self._host.clock_ahead

    @property
    def machine_lost(self) -> bool:  # type: ignore[override]
        return bool(self._host.lost)

    @property
    def exitcode(self) -> int | None:
        self._host.update()
        default = -signal.SIGKILL if self._host.lost else None
        return self._host.deaths.get(self.pid, (default, ""))[0]

    @property
    def how_it_died(self) -> str:
        lost = self._host.lost
        return machine_lost(self._host.machine.name, lost) if lost else super().how_it_died

    def stack(self) -> str:
        return self._host.deaths.get(self.pid, (0, ""))[1]

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(CourseError):  # the machine is lost
            self._host.ask("kill", self.pid, number)

    def close(self) -> None:
        self.kill()
