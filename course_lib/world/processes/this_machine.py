"""The source of workers on the kernel's own machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from multiprocessing.util import get_temp_dir
from pathlib import Path

from .placement import LOOPBACK, Machine, Place
from .protocol import Group, Kernel
from .worker_handle import WorkerHandle, start_server


class ThisMachine:
    """The kernel's own machine; see `pool.Source`."""

    @property
    def machines(self) -> list[Machine]:
        return [Machine.here(LOOPBACK)]

    @property
    def kernel(self) -> Kernel:
        return Kernel(environ=dict(os.environ), folder=os.getcwd(), path=tuple(sys.path))

    def start(self) -> None:
        start_server()

    def spawn(self, machines: Sequence[str]) -> list[WorkerHandle]:
        return [WorkerHandle.start() for _ in machines]

    def group(self, number: int, first: Place) -> Group:
        return Group(name=str(Path(get_temp_dir()) / f"group {number}"))

    def confirm(self) -> None:
        pass  # the sentinels report deaths at once

    def close(self) -> None:
        pass  # multiprocessing ends its server with the kernel
