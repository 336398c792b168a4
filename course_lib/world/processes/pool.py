"""The ranks' processes: started when a world first needs them, and kept for every world that follows.

Rank r of any world on one machine is process r, so worlds of 1 to 4 ranks share four processes, and what a function
leaves in a module is there when the next one looks. A process that has died is replaced.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from ..errors.rank_error import who
from .messages import Group, Kernel
from .placement import Machine, Place
from .this_machine import ThisMachine
from .worker_handle import WorkerHandle


class Source(Protocol):
    """What gives birth to processes: see `ThisMachine`, and `cluster.Cluster` for several machines."""

    @property
    def machines(self) -> Sequence[Machine]:
        """Those that can be had now."""

    @property
    def kernel(self) -> Kernel | None:
        """What surrounds the kernel, if processes live in that."""

    def start(self) -> None:
        """Be ready to give birth, soon; this does not wait for it."""

    def spawn(self, machines: Sequence[str]) -> list[WorkerHandle]:
        """New processes, each on one of the `machines`.

        Raises:
            CourseError: one of them cannot give birth any more.
        """

    def group(self, number: int, first: Place) -> Group:
        """Where the ranks of a new group find each other; the first of them is at `first`."""

    def confirm(self) -> None:
        """Return when it is known of every process whether it lives."""

    def forget(self) -> None:
        """Let go of processes that belong to the parent of this one."""

    def close(self) -> None:
        """End every process."""


class Pool:
    """Processes for ranks; one run at a time uses them.

    Attributes:
        source: what makes them.
        lock: held by who uses the processes.
        numbers: those of runs.
        sent: the sources of cells that every process has.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.numbers = count(1)
        self.sent: set[str] = set()
        self.lock = threading.RLock()
        self._processes: dict[tuple[str, int], WorkerHandle] = {}  # by seat
        self._kernel = os.getpid()
        self._groups = count(1)
        self._group: tuple[Group | None, Sequence[object]] = (None, ())

    @property
    def processes(self) -> list[WorkerHandle]:
        """All there are."""
        return list(self._processes.values())

    def start(self) -> None:
        """Let the source load torch, if it has not yet; this does not wait for it."""
        if not self.lock.acquire(blocking=False):
            return  # a run uses it, so it runs
        try:
            if self._kernel != os.getpid():  # forked by the learner: the processes are the parent's
                self._kernel = os.getpid()
                self._processes.clear()
                self.source.forget()
                self.spoil_group()
            self.source.start()
        finally:
            self.lock.release()

    def take(self, places: Sequence[Place]) -> list[WorkerHandle]:
        """The processes at these places, by rank, for who holds the lock."""
        seats = [place.seat for place in places]
        dead = [rank for rank, seat in enumerate(seats) if seat in self._processes and self._processes[seat].dead()]
        if dead:
            print(f"[world] {who(dead)} had died since the last run; a new process took over, with nothing of the old")
            self.drop([places[rank] for rank in dead])
        empty = [seat for seat in seats if seat not in self._processes]
        if empty:
            self._processes |= zip(empty, self.source.spawn([machine for machine, _ in empty]), strict=True)
            self.sent.clear()
        return [self._processes[seat] for seat in seats]

    def drop(self, places: Sequence[Place]) -> None:
        """Let go of the processes at these places: who takes them next gets new ones."""
        for place in places:
            self._processes.pop(place.seat).close()

    def group(self, places: Sequence[Place], *, nccl: bool) -> Group:
        """Where the ranks at these places find each other: that of the last run if they can go on with its group."""
        members = (nccl, *(self._processes[place.seat] for place in places))
        group = self._group[0]
        if group is None or self._group[1] != members:
            group = self.source.group(next(self._groups), places[0])
            self._group = (group, members)
        return group

    def spoil_group(self) -> None:
        """The next run must not go on with the group of the last."""
        self._group = (None, ())

    def close(self) -> None:
        """End every process."""
        if self._kernel != os.getpid():
            return
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        self.source.close()
        self.spoil_group()
        self.sent.clear()


pool = Pool(ThisMachine())
"""The processes of this machine."""

atexit.register(pool.close)
