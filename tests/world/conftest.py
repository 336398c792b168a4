"""Fixtures for tests of several backends."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

import pytest

from course_lib.world.processes.run_loop import RunLoop
from course_lib.world.processes.worker_handle import Process, WorkerHandle
from tests.world.engines import Engines


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """A cluster of two engines on this machine, which go by two names."""
    engines = Engines(tmp_path_factory.mktemp("cluster"))
    try:
        engines.add("left", "right")
        yield engines
    finally:
        engines.close()


class NoProcess(Process):
    """A process that ends when a test sets its exit code."""

    exitcode: int | None = None
    clock_ahead = 0.0

    def __init__(self) -> None:
        self.pid = 0
        self.sentinel, self._end = os.pipe()

    def stack(self) -> str:
        return ""

    def close(self) -> None:
        os.close(self.sentinel)
        os.close(self._end)


@dataclass
class FarEnd:
    """A worker without a process.

    Attributes:
        handle: the kernel's handle of it.
        wire, output: the worker's ends of the connections.
    """

    handle: WorkerHandle
    wire: Connection
    output: Connection


@pytest.fixture
def far_end() -> Iterator[FarEnd]:
    (wire, their_wire), (output, their_output) = Pipe(), Pipe(duplex=False)
    handle = WorkerHandle(wire, output, NoProcess())
    yield FarEnd(handle=handle, wire=their_wire, output=their_output)
    handle.close()
    their_wire.close()
    their_output.close()


@pytest.fixture
def hold_up(monkeypatch):
    """Holds the kernel up for so many seconds, once, when every rank of a run has entered its function."""
    hear, held_up = RunLoop._read, []

    def hold_up(seconds: float) -> None:
        def late(self, left):
            heard = hear(self, left)
            if not self._waited_for and not held_up:
                held_up.append(time.sleep(seconds))
            return heard

        monkeypatch.setattr(RunLoop, "_read", late)

    yield hold_up
    assert held_up
