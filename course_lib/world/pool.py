"""The ranks' processes of this kernel: started when a world first needs them, and kept for every world that follows.

Rank r of any world is process r, so worlds of 1 to 4 ranks share four processes, and what a function leaves in a module
is there when the next one looks. A process that has died is replaced.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from itertools import count
from pathlib import Path

from .failure import who
from .process import ForkServer, Process


class Pool:
    """Processes for ranks; one run at a time uses them.

    Attributes:
        lock: held by who uses the processes.
        processes: one for each rank.
        numbers: those of runs.
        sent: the sources of cells that every process has.
    """

    def __init__(self) -> None:
        self.numbers = count(1)
        self.sent: set[str] = set()
        self.lock = threading.RLock()
        self._server: ForkServer | None = None
        self.processes: list[Process] = []
        self._kernel = os.getpid()
        self._folder = ""
        self._files = count(1)
        self._group: tuple[str, tuple[int, ...]] = ("", ())

    def start(self) -> None:
        """Let the server load torch, if it does not run yet; this does not wait for it."""
        if not self.lock.acquire(blocking=False):
            return  # a run uses it, so it runs
        try:
            if self._kernel != os.getpid():  # forked by the learner: the processes are the parent's
                self._kernel, self._server, self.processes, self._folder = os.getpid(), None, [], ""
                self.spoil_group()
            if self._server is None or not self._server.alive:
                self.close()
                self._folder = tempfile.mkdtemp(prefix="course-world-")
                self._server = ForkServer()
        finally:
            self.lock.release()

    def take(self, world_size: int) -> list[Process]:
        """The processes of ranks 0 to `world_size` - 1, for who holds the lock."""
        self.start()
        self._replace_dead(world_size)
        return self.processes[:world_size]

    @property
    def server_pid(self) -> int | None:
        """The number of the process whose children the ranks are; None where there is none yet."""
        return None if self._server is None else self._server.pid

    def group(self, processes: list[Process], *, nccl: bool) -> str:
        """The file through which these find each other: that of the last run if they can go on with its group."""
        members = (nccl, *(process.pid for process in processes))
        if self._group[1] != members:
            self._group = (str(Path(self._folder) / f"group {next(self._files)}"), members)
        return self._group[0]

    def spoil_group(self) -> None:
        """The next run must not go on with the group of the last."""
        self._group = ("", ())

    def replace(self, ranks: list[int]) -> None:
        """Give these ranks new processes."""
        assert self._server is not None
        for rank in ranks:
            self.processes[rank].close()
            self.processes[rank] = self._server.spawn()
            self.sent.clear()

    def _replace_dead(self, world_size: int) -> None:
        assert self._server is not None
        dead = [rank for rank, process in enumerate(self.processes) if process.dead()]
        if dead:
            print(f"[world] {who(dead)} had died since the last run; a new process took over, with nothing of the old")
            self.replace(dead)
        while len(self.processes) < world_size:
            self.processes.append(self._server.spawn())
            self.sent.clear()

    def close(self) -> None:
        """End every process."""
        if self._kernel != os.getpid():
            return
        for process in self.processes:
            process.close()
        if self._server is not None:
            self._server.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._server, self.processes, self._folder = None, [], ""
        self.spoil_group()
        self.sent.clear()


pool = Pool()
atexit.register(pool.close)
