"""The source of ranks' processes on the kernel's own machine."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .messages import Group, Kernel
from .placement import LOOPBACK, Machine, Place
from .worker_handle import ForkServer, WorkerHandle


class ThisMachine:
    """A source with a fork server, started when it is first needed; see `pool.Source`."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self._folder = ""

    @property
    def machines(self) -> list[Machine]:
        return [Machine.here(LOOPBACK)]

    @property
    def kernel(self) -> Kernel:
        return Kernel(environ=dict(os.environ), folder=os.getcwd(), path=tuple(sys.path))

    @property
    def server_pid(self) -> int | None:
        """Return the number of the fork server's process; None if there is none yet."""
        return None if self._server is None else self._server.pid

    def start(self) -> None:
        if self._server is None or not self._server.alive:
            self.close()
            self._folder = tempfile.mkdtemp(prefix="course-world-")
            self._server = ForkServer()

    def spawn(self, machines: Sequence[str]) -> list[WorkerHandle]:
        assert self._server is not None
        return [self._server.spawn() for _ in machines]

    def group(self, number: int, first: Place) -> Group:
        return Group(name=str(Path(self._folder) / f"group {number}"))

    def confirm(self) -> None:
        pass  # the fork server reports deaths at once

    def forget(self) -> None:
        self._server, self._folder = None, ""

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.forget()
