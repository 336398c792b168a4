"""The pool of the ranks' processes: started when a world first needs them, and used again by later worlds.

On one machine, rank r of any world is process r, so worlds of 1 to 4 ranks share four processes. Modules keep what a
function leaves in them. A process that has died is replaced.
"""

import atexit
import os
import threading
from collections.abc import Sequence
from itertools import count
from multiprocessing.util import get_temp_dir
from pathlib import Path

from ...errors import CourseError, who
from ..rank_threads.interrupts import put_off
from ..torch_hooks.gloo import A_FORK
from .placement import LOOPBACK, Machine, Place
from .protocol import Group
from .worker_handle import WorkerHandle, start_server


class Pool:
    """The processes of this machine; one run at a time uses them, and holds the lock.

    `cluster.backend.Cluster` is the pool of several machines.

    Attributes:
        local: the processes are on the kernel's machine, and share its environment.
    """

    local = True

    def __init__(self) -> None:
        self.numbers = count(1)
        self.lock = threading.RLock()
        self._processes: dict[tuple[str, int], WorkerHandle] = {}  # by seat
        self._kernel = os.getpid()
        self._groups = count(1)
        self._group: tuple[Group | None, Sequence[object]] = (None, ())
        atexit.register(self.close)

    # -- different on several machines -------------------------------------------------------------------------------

    @property
    def machines(self) -> Sequence[Machine]:
        return [Machine.here(LOOPBACK)]

    def prepare(self) -> None:
        """Prepare to start processes, without waiting."""
        start_server()

    def spawn(self, machines: Sequence[str]) -> list[WorkerHandle]:
        """Return new processes, each on one of the `machines`."""
        return [WorkerHandle.start() for _ in machines]

    def new_group(self, number: int, first: Place) -> Group:
        """Return where the ranks of a new group find each other; the first of them is at `first`."""
        return Group(name=str(Path(get_temp_dir()) / f"group {number}"))

    def confirm(self) -> None:
        """Wait until the state of every process, alive or dead, is known. Here, the sentinels report deaths at once."""

    # -- the same everywhere -----------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[WorkerHandle]:
        return list(self._processes.values())

    def start(self) -> None:
        """Prepare to start processes, unless a run is using them.

        Raises:
            CourseError: this process is a fork of the one that started the processes: it would talk to its ranks.
        """
        if self._processes and self._kernel != os.getpid():
            raise CourseError(A_FORK)
        if self.lock.acquire(blocking=False):
            try:
                self.prepare()
            finally:
                self.lock.release()

    def take(self, places: Sequence[Place]) -> list[WorkerHandle]:
        """Return the processes at these places, by rank."""
        seats = [place.seat for place in places]
        dead = [rank for rank, seat in enumerate(seats) if seat in self._processes and self._processes[seat].dead()]
        if dead:
            print(f"[world] {who(dead)} had died since the last run; a new process took over, with nothing of the old")
            self.drop([places[rank] for rank in dead])
        empty = [seat for seat in seats if seat not in self._processes]
        if empty:
            self._processes |= zip(empty, self.spawn([machine for machine, _ in empty]), strict=True)
        return [self._processes[seat] for seat in seats]

    def drop(self, places: Sequence[Place]) -> None:
        for place in places:
            self._processes.pop(place.seat).close()

    def group(self, places: Sequence[Place], *, nccl: bool) -> Group:
        """Return where the ranks at these places find each other: as in the last run, if they can use that group
        again."""
        members = (nccl, *(self._processes[place.seat] for place in places))
        group = self._group[0]
        if group is None or self._group[1] != members:
            group = self.new_group(next(self._groups), places[0])
            self._group = (group, members)
        return group

    def spoil_group(self) -> None:
        """Prevent the next run from using the last run's group."""
        self._group = (None, ())

    def close(self) -> None:
        if self._kernel != os.getpid():  # a fork of the kernel ends
            return
        with put_off() as late:  # a process that is not killed holds up Python's end
            for process in self._processes.values():
                process.close()
            self._processes.clear()
            self.spoil_group()
            late.clear()  # Python ends anyway


pool = Pool()
"""The processes of this machine."""
