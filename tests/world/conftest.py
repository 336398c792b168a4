"""What tests of several backends use."""

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from course_lib.world.processes.run_loop import RunLoop
from course_lib.world.processes.worker_handle import WorkerHandle
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


@dataclass
class FarEnd:
    """What a process would hold: the socket on which it tells, and where its end is told.

    Attributes:
        process: what the kernel has of it.
    """

    process: WorkerHandle
    wire: socket.socket
    status: int


@pytest.fixture
def far_end() -> Iterator[FarEnd]:
    """That of a process that is not there."""
    wire, theirs = socket.socketpair()
    pipes = [os.pipe() for _ in ("output", "stack", "status")]
    process = WorkerHandle(0, wire, *(read for read, _ in pipes))
    yield FarEnd(process=process, wire=theirs, status=pipes[2][1])
    process.exitcode = 0  # there is none to be ended
    process.close()
    theirs.close()
    for _, write in pipes:
        os.close(write)


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
