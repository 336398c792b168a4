"""Ranks as processes of this machine, kept from run to run; on the CPU, or with GPUs."""

from __future__ import annotations

import linecache
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..errors import CourseError
from . import copies, interrupts, results
from .conduct import Conduct
from .failure import Interrupted, RankError
from .outcome import Outcome
from .pool import Pool, pool
from .process import Process
from .telling import tell
from .wire import Job

MAX_RANKS = 64
"""The most processes that a world has."""

LARGE_BYTES = 10**7
"""Who sends more than this to every rank is told."""


class Processes:
    """A world of processes: see `backends.Backend`.

    Args:
        world_size: how many.
        devices: the GPU of each rank; None for the CPU. An attribute, too.
        nccl: tensors on GPUs go through NCCL. An attribute, too.

    Raises:
        CourseError: it would have no rank, or more than `MAX_RANKS`; or this system has no fork.
    """

    def __init__(self, world_size: int, *, devices: tuple[int, ...] | None = None, nccl: bool = False) -> None:
        if not 1 <= world_size <= MAX_RANKS:
            raise CourseError(
                f"World({world_size}): a world of processes has 1 to {MAX_RANKS} ranks. Choose a number in that range."
            )
        if not hasattr(os, "fork"):
            raise CourseError(
                f"World(backend='processes'): {sys.platform} cannot fork processes, as Linux and macOS do. "
                "Leave the argument out for simulated ranks, which run everywhere."
            )
        self._world_size, self.devices, self.nccl = world_size, devices, nccl
        pool.start()

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
        with pool.lock, interrupts.put_off() as late:
            processes = pool.take(self._world_size)
            number = next(pool.numbers)
            conduct = Conduct(processes, number, late)
            conduct.run(self._jobs(pool, processes, number, packed, size_of, conduct.rendezvous.started), timeout)
            reports = [] if conduct.rendezvous.fault is None else conduct.end()
            conduct.close()
            spent = conduct.spent
            pool.replace(spent)
            if reports or not all(one.has_group for one in conduct.left.values()):
                pool.spoil_group()
        fault, outputs = conduct.rendezvous.fault, conduct.output.texts
        if fault is not None:
            message = tell(fault, reports, conduct.rendezvous.diverged, timeout, spent)
            if fault.kind == "interrupted":
                raise Interrupted(message)
            raise RankError(message, kind=fault.kind, rank=fault.ranks[0], ranks=reports, output=outputs)
        left = [conduct.left[rank] for rank in range(self._world_size)]
        return Outcome(
            results=[results.unpack(rank, one.result) for rank, one in enumerate(left)],
            output=outputs,
            calls=[one.calls for one in left],
            started=conduct.rendezvous.started,
            spans=[one.span for one in left],
            memory=[one.memory for one in left if one.memory is not None],
        )

    def _jobs(
        self,
        pool: Pool,
        processes: list[Process],
        number: int,
        packed: bytes,
        size_of: Callable[[int], int] | None,
        started: float,
    ) -> list[Job]:
        sources = _sources(pool.sent)
        return [
            Job(
                number=number,
                rank=rank,
                world_size=self._world_size,
                group=pool.group(processes, nccl=self.nccl),
                device=None if self.devices is None else self.devices[rank],
                nccl=self.nccl,
                packed=packed,
                size_of=size_of,
                started=started,
                environ=dict(os.environ),
                folder=os.getcwd(),
                path=tuple(sys.path),
                threads=max(1, torch.get_num_threads() // self._world_size),
                sources=sources,
            )
            for rank in range(self._world_size)
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
