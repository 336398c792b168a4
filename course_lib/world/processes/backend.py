"""Ranks as processes, kept from run to run: of this machine or of several; on the CPU, or with GPUs."""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import CourseError
from .. import copies, results
from ..errors.telling import error_of
from ..outcome import Outcome
from ..rank_threads import interrupts
from .conduct import Conduct
from .machines import Machine, Place, evenly
from .pool import Pool, pool
from .wire import Job

MAX_RANKS = 64
"""The most processes that a world has on a machine."""

LARGE_BYTES = 10**7
"""Who sends more than this to every rank is told."""

TAKEN_ALONG = ("NCCL_", "TORCH_", "GLOO_", "OMP_", "COURSE_")
"""What the kernel's environment variables begin with that ranks on other machines get, too."""

OF_A_MACHINE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "COURSE_HOST", "COURSE_HOME")
"""But not these: each machine has its own."""

Placing = Callable[[int, Sequence[Machine]], list[Place]]
"""Where each of so many ranks is to be, on these machines."""


class Processes:
    """A world of processes: see `backends.Backend`.

    Args:
        world_size: how many.
        pool: whose.
        placing: where they are to be. An attribute, too.
        nccl: tensors on GPUs go through NCCL. An attribute, too.

    Raises:
        CourseError: it would have no rank, or more than `MAX_RANKS` on a machine.
    """

    def __init__(self, world_size: int, *, pool: Pool = pool, placing: Placing = evenly, nccl: bool = False) -> None:
        self._world_size, self._pool, self.placing, self.nccl = world_size, pool, placing, nccl
        pool.start()
        most = MAX_RANKS * len(pool.source.machines)
        if not 1 <= world_size <= most:
            raise CourseError(
                f"World({world_size}): a world of processes has 1 to {most} ranks. Choose a number in that range."
            )

    @property
    def places(self) -> list[Place]:
        """Where each rank would be now.

        Raises:
            CourseError: there is no room for so many, any more.
        """
        return self.placing(self._world_size, self._pool.source.machines)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        timeout: float,
        size_of: Callable[[int], int] | None,
    ) -> Outcome:
        packed = copies.pack(fn, args, kwargs)
        if len(packed) > LARGE_BYTES:
            label, nbytes = copies.largest(fn, args, kwargs)
            warnings.warn(
                f"every rank is sent {len(packed):,} bytes, {nbytes:,} of them for {label}, again in each run. Make "
                "that inside the function, or load it there from a file.",
                stacklevel=3,
            )
        with self._pool.lock, interrupts.put_off() as late:
            conduct = self._conducted(packed, timeout, size_of, late)
        rendezvous, outputs = conduct.rendezvous, conduct.output.texts
        if rendezvous.fault is not None:
            raise error_of(
                rendezvous.fault, conduct.reports, rendezvous.diverged, timeout, outputs, replaced=conduct.replaced
            )
        left = [conduct.left[rank] for rank in range(self._world_size)]
        return Outcome(
            results=[results.unpack(rank, one.result) for rank, one in enumerate(left)],
            output=outputs,
            calls=[one.calls for one in left],
            started=rendezvous.started,
            spans=[one.span for one in left],
            memory=[one.memory for one in left if one.memory is not None],
        )

    def _conducted(
        self, packed: bytes, timeout: float, size_of: Callable[[int], int] | None, late: list[Any]
    ) -> Conduct:
        """One run, which is over; the pool is ready for the next."""
        pool = self._pool
        pool.start()
        places = self.places
        number = next(pool.numbers)
        conduct = Conduct(pool.take(places), number, late)
        conduct.run(self._jobs(places, number, packed, size_of, conduct.rendezvous.started), timeout)
        if conduct.rendezvous.fault is not None:
            if conduct.rendezvous.fault.kind == "raised":
                pool.source.confirm()  # a broken connection may come before the news of who broke it
            conduct.end()
        conduct.close()
        pool.drop([places[rank] for rank in conduct.spent])
        if conduct.reports or not all(left.has_group for left in conduct.left.values()):
            pool.spoil_group()
        return conduct

    def _jobs(
        self,
        places: Sequence[Place],
        number: int,
        packed: bytes,
        size_of: Callable[[int], int] | None,
        started: float,
    ) -> list[Job]:
        machines = {machine.name: machine for machine in self._pool.source.machines}
        group, kernel = self._pool.group(places, nccl=self.nccl), self._pool.source.kernel
        sources = _sources(self._pool.sent)
        taken_along = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(TAKEN_ALONG) and name not in OF_A_MACHINE
        }
        return [
            Job(
                number=number,
                rank=rank,
                world_size=self._world_size,
                place=place,
                group=group,
                nccl=self.nccl,
                packed=packed,
                size_of=size_of,
                started=started,
                kernel=kernel,
                environ=taken_along if kernel is None else {},
                interface=machines[place.machine].interface,
                threads=max(1, machines[place.machine].threads // place.local_world_size),
                sources=sources,
            )
            for rank, place in enumerate(places)
        ]


def _sources(sent: set[str]) -> dict[str, list[str]]:
    """The source code that is in no file, and has not been sent yet: that of cells."""
    new = {
        name: entry[2]
        for name, entry in list(linecache.cache.items())
        if name not in sent and len(entry) == 4 and entry[1] is None
    }
    sent |= new.keys()
    return new
