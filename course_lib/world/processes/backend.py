"""The backend of ranks that are processes: on one machine or several, on the CPU or on GPUs, kept from run to run."""

import linecache
import os
import sys
from collections.abc import Callable, Sequence

from ...errors import CourseError
from ...meter import gpu_bytes
from ..errors.message import error_of
from ..errors.rank_error import Kept
from ..pickling.results import unpack_result
from ..rank_threads.interrupts import one_run
from ..run import Order, Run
from .placement import Machine, Place, evenly
from .pool import Pool, pool
from .protocol import Job
from .run_loop import RunLoop

MAX_RANKS = 64  # the most processes of a world on one machine

TAKEN_ALONG = ("NCCL_", "TORCH_", "GLOO_", "OMP_", "COURSE_")
"""Prefixes of environment variables that configure torch and the course."""

OF_A_MACHINE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "COURSE_HOST", "COURSE_HOME")
"""Exceptions: each machine has its own value."""

Placing = Callable[[int, Sequence[Machine]], list[Place]]
"""Returns the place of each of so many ranks on these machines."""


class Processes:
    """A world of processes: see `backends.Backend`."""

    def __init__(
        self,
        world_size: int,
        *,
        pool: Pool = pool,
        placing: Placing = evenly,
        nccl: bool = False,
        gpus: bool | float = False,
    ) -> None:
        self._world_size, self._pool, self.placing, self.nccl = world_size, pool, placing, nccl
        self._gpus = gpu_bytes(gpus)
        pool.start()
        most = MAX_RANKS * len(pool.machines)
        if not 1 <= world_size <= most:
            raise CourseError(
                f"World({world_size}): a world of processes has 1 to {most} ranks. Choose a number in that range."
            )

    @property
    def places(self) -> list[Place]:
        """Return the place that each rank would have now."""
        return self.placing(self._world_size, self._pool.machines)

    def run(self, order: Order) -> Run:
        with one_run(self._pool.lock):
            run_loop = self._completed_run(order)
        fault, ranks = run_loop.coordinator.fault, range(self._world_size)
        left = [run_loop.left.get(rank) for rank in ranks]  # None for a rank that died
        kept = Kept(
            output=run_loop.output.texts,
            calls=run_loop.calls,
            spans=[one.span if one else None for one in left],
            memory=[one.memory if one else None for one in left],
        )
        if fault is not None:
            raise error_of(fault, run_loop.reports, order.timeout, replaced=run_loop.replaced, kept=kept)
        return Run(results=[unpack_result(rank, *run_loop.left[rank].result) for rank in ranks], kept=kept)

    def _completed_run(self, order: Order) -> RunLoop:
        """Run to the end, and make the pool ready for the next run."""
        pool = self._pool
        pool.start()
        places = self.places
        number = next(pool.numbers)
        run_loop = RunLoop(pool.take(places), number, order.late, order.lines)
        try:
            run_loop.run(self._jobs(places, number, order, run_loop.coordinator.started), order.timeout)
            if run_loop.coordinator.fault is not None:
                if run_loop.coordinator.fault.kind == "raised":
                    pool.confirm()  # a broken connection may be reported before the death that broke it
                run_loop.end()
            run_loop.close()
        except BaseException:  # a signal handler's: the ranks would go on, and a message may be half read
            pool.drop(places)
            run_loop.release()
            raise
        pool.drop([places[rank] for rank in run_loop.spent])
        if run_loop.reports or not all(left.has_group for left in run_loop.left.values()):
            pool.spoil_group()
        return run_loop

    def _jobs(self, places: Sequence[Place], number: int, order: Order, started: float) -> list[Job]:
        pool = self._pool
        machines = {machine.name: machine for machine in pool.machines}
        group, sources = pool.group(places, nccl=self.nccl), _cells()
        return [
            Job(
                number=number,
                rank=rank,
                world_size=self._world_size,
                place=place,
                group=group,
                nccl=self.nccl,
                gpus=self._gpus,
                packed=order.packed,
                size_of=order.size_of,
                started=started,
                environ=dict(os.environ) if pool.local else _taken_along(),
                folder=(os.getcwd(), sys.path) if pool.local else None,
                interface=machines[place.machine].interface,
                threads=max(1, machines[place.machine].threads // place.local_world_size),
                sources=sources,
            )
            for rank, place in enumerate(places)
        ]


def _taken_along() -> dict[str, str]:
    """Return the kernel's environment variables that ranks on other machines get."""
    return {
        name: value for name, value in os.environ.items() if name.startswith(TAKEN_ALONG) and name not in OF_A_MACHINE
    }


def _cells() -> dict[str, list[str]]:
    """Return the source code that is in no file: that of cells."""
    entries = list(linecache.cache.items())
    return {name: entry[2] for name, entry in entries if len(entry) == 4 and entry[1] is None}
