"""A worker's process, started by `multiprocessing`'s fork server, and the kernel's handle of it.

A kernel must not fork itself: after a matrix product on several threads, its fork hangs. The fork server has loaded
torch and never computes. It forks workers in a few milliseconds each; they share its memory.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, Pipe
from types import ModuleType
from typing import Any

from ...errors import CourseError
from ..errors.exit_status import how_it_died
from . import worker

_CONTEXT = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Start the fork server, if there is none, without waiting until it has loaded torch."""
    _CONTEXT.set_forkserver_preload([worker.__name__])
    with _hidden_main(), _interrupts_blocked():
        forkserver.ensure_running()


class Process:
    """A process that runs `worker.main` with these connections, which this class closes here."""

    pid: int
    sentinel: Any  # for `select`: ready when the process may have ended
    machine_lost: bool = False
    clock_ahead: float = 0.0  # seconds by which its machine's `time.perf_counter` is ahead of the kernel's

    def __init__(self, wire: Connection, output: Connection) -> None:
        self._stack, stack = Pipe(duplex=False)  # where faulthandler writes after a crash
        self._process = _CONTEXT.Process(target=worker.main, args=(wire, output, stack))
        try:
            with _hidden_main():
                self._process.start()
        except (OSError, EOFError) as error:
            raise CourseError(
                f"World: no process could be started for a rank ({type(error).__name__}: {error}; the terminal may "
                "show more). Start this Python again; if it happens again, look at `course doctor`."
            ) from None
        finally:
            for connection in (wire, output, stack):
                connection.close()
        assert self._process.pid is not None
        self.pid, self.sentinel = self._process.pid, self._process.sentinel

    @property
    def exitcode(self) -> int | None:
        """Return how the process ended: minus a signal's number if one ended it; None if it is alive."""
        return self._process.exitcode

    @property
    def how_it_died(self) -> str:
        assert self.exitcode is not None
        return how_it_died(self.exitcode)

    def stack(self) -> str:
        """Return the stack of its Python code, if it crashed."""
        return os.read(self._stack.fileno(), 1 << 16).decode(errors="replace") if self._stack.poll() else ""

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the process and its child processes by a signal."""
        if self.exitcode is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # it has not made its own group yet, or it is dead
                self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.join()
        self._process.close()
        self._stack.close()


class WorkerHandle:
    """The kernel's handle of a worker. `wire` is for messages: see `protocol`."""

    def __init__(self, wire: Connection, output: Connection, process: Process) -> None:
        self.wire, self.output, self.process = wire, output, process

    @classmethod
    def start(cls) -> WorkerHandle:
        (wire, their_wire), (output, their_output) = Pipe(), Pipe(duplex=False)
        return cls(wire, output, Process(their_wire, their_output))

    def dead(self) -> bool:
        return self.process.exitcode is not None

    def send(self, request: str, argument: Any = None) -> None:
        """Send a message. A dead worker gets none."""
        with suppress(OSError):  # the sentinel will report its death
            self.wire.send((request, argument))

    def receive(self) -> tuple[int, str, tuple[Any, ...]] | None:
        """Return the next message: its run's number, the event and its arguments. Return None if the worker is dead."""
        try:
            message: tuple[int, str, tuple[Any, ...]] = self.wire.recv()
        except (EOFError, OSError):
            return None
        return message

    def read_output(self) -> bytes | None:
        """Return output that has arrived; None at its end. Call it when `output` is ready."""
        try:
            return os.read(self.output.fileno(), 1 << 20) or None
        except OSError:
            return None

    def close(self) -> None:
        self.process.close()
        self.wire.close()
        self.output.close()


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide the learner's script, which `multiprocessing` would run again in each worker, and restore the start method,
    which it would fix."""
    main, method = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        multiprocessing.set_start_method(method, force=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in the processes that this thread starts.

    Jupyter interrupts the kernel's whole process group. An interrupt in the fork server's imports would end the server,
    or an ImportError in place of it, which the server suppresses, would leave it with half of numpy.
    """
    resource_tracker.ensure_running()  # which unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
