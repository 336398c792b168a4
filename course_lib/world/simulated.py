"""Ranks as threads of this process, with real gloo between them.

One thread a rank runs the learner's function; the thread that called `World.run` supervises: it waits for all to
leave, and ends the run at the first fault, at the time limit or when it is interrupted. Nothing is kept from one run
to the next: groups, threads and sockets are made in a few milliseconds, and closed before the run returns.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist

from ..errors import CourseError
from ..meter import MemoryMeter
from . import gloo, interpose, interrupts, metered, stopping, streams
from .copies import Copies
from .failure import Interrupted, RankError, RankReport
from .fault import State, Stopped
from .outcome import Outcome
from .rank import Rank
from .rendezvous import Rendezvous
from .standins import Shared
from .telling import tell
from .threads import ThreadRendezvous

MAX_RANKS = 64
"""The most ranks that a simulated world has."""

SETTLE = 0.15
"""Seconds that the other ranks have, after a fault, to come to where they would wait."""

GRACE = 0.4
"""Seconds in which ranks must stop after that, before they are left behind."""


class Simulated:
    """A world of threads: see `backends.Backend`.

    Raises:
        CourseError: it would have no rank, or more than `MAX_RANKS`.
    """

    def __init__(self, world_size: int) -> None:
        if not 1 <= world_size <= MAX_RANKS:
            raise CourseError(
                f"World({world_size}): a simulated world has 1 to {MAX_RANKS} ranks, one thread each. "
                f"Choose a number in that range."
            )
        self._world_size = world_size

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        timeout: float,
        size_of: Callable[[int], int] | None,
    ) -> Outcome:
        with interrupts.put_off() as late:
            return self._run(Copies(fn, args, kwargs), timeout, size_of, late)

    def _run(self, copies: Copies, timeout: float, size_of: Callable[[int], int] | None, late: list[Any]) -> Outcome:
        rendezvous = ThreadRendezvous(self._world_size)
        ranks = _ranks(rendezvous, copies, size_of)
        reports = _conduct(rendezvous, ranks, timeout, late, measured=size_of is not None)
        outputs = [rank.streams.output for rank in ranks]
        if (fault := rendezvous.fault) is not None:
            reports = [_completed(report, ranks[report.rank]) for report in reports]
            message = tell(fault, reports, rendezvous.diverged, timeout)
            if fault.kind == "interrupted":
                late.clear()
                raise Interrupted(message)
            raise RankError(message, kind=fault.kind, rank=fault.ranks[0], ranks=reports, output=outputs)
        return Outcome(
            results=[rank.result for rank in ranks],
            output=outputs,
            calls=rendezvous.log,
            started=rendezvous.started,
            spans=rendezvous.spans,
            memory=[rank.meter.report() for rank in ranks if rank.meter is not None],
        )


def _ranks(rendezvous: ThreadRendezvous, copies: Copies, size_of: Callable[[int], int] | None) -> list[Rank]:
    store = dist.HashStore()
    ranks = [Rank(rank, rendezvous, copies, store) for rank in range(rendezvous.world_size)]
    if size_of is not None:
        meters: WeakSet[MemoryMeter] = WeakSet()  # weak, for each of them knows all
        for rank in ranks:
            rank.meter = metered.memory_meter(rank.rank, rendezvous.started, size_of, meters)
    return ranks


def _conduct(
    rendezvous: ThreadRendezvous, ranks: list[Rank], timeout: float, late: list[Any], *, measured: bool
) -> list[RankReport]:
    """Let the ranks run until they have left, or are stopped: what each was doing at a fault."""
    reports: list[RankReport] = []
    with ExitStack() as stack:
        for context in (process_settings, streams.streams_by_thread, interpose.rank_threads):
            stack.enter_context(context.in_use())
        if measured:
            stack.enter_context(owners_told.in_use())
        for rank in ranks:
            rank.start()
        _supervise(rendezvous, timeout, late)
        if rendezvous.fault is not None:
            _settle(rendezvous)
            reports = _reports(rendezvous, ranks)
            _stop(rendezvous, ranks)
        _close(rendezvous, ranks)
    return reports


owners_told = Shared(metered.owners_told)


@contextmanager
def _process_settings_kept() -> Iterator[None]:
    """Undo what ranks set for the whole process, and what `init_process_group` does to `sys.excepthook`."""
    dtype, excepthook, unraisablehook = torch.get_default_dtype(), sys.excepthook, sys.unraisablehook
    threads = torch.get_num_threads()
    # In a `__del__`, Python drops a `Stopped` and says so; but another follows.
    sys.unraisablehook = lambda dropped: None if dropped.exc_type is Stopped else unraisablehook(dropped)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        sys.excepthook, sys.unraisablehook = excepthook, unraisablehook


process_settings = Shared(_process_settings_kept)


def _supervise(rendezvous: Rendezvous, timeout: float, late: list[Any]) -> None:
    """Wait until the run is over; after `timeout` seconds, or when an interrupt is in `late`, it is in any case."""
    deadline = time.monotonic() + timeout
    with rendezvous.changed:
        while not rendezvous.over:
            left = deadline - time.monotonic()
            if late:
                rendezvous.fail("interrupted")
            elif left <= 0:
                rendezvous.fail("timeout")
            else:
                rendezvous.changed.wait(min(left, 0.1))  # short, for the sake of `late`


def _reports(rendezvous: Rendezvous, ranks: list[Rank]) -> list[RankReport]:
    """What each rank was doing when the fault was found, before it is told to stop."""
    waits = {rank: meeting.calls[rank] for rank, meeting in rendezvous.waits.items()}
    return [
        RankReport(rank=rank.rank, state=state.value, site=rank.where(), call=waits.get(rank.rank))
        for rank, state in zip(ranks, rendezvous.states, strict=True)
    ]


def _completed(report: RankReport, rank: Rank) -> RankReport:
    return RankReport(
        rank=report.rank,
        state="raised" if rank.raised is not None else report.state,
        site=report.site,
        call=report.call,
        raised=rank.raised,
        stopped=not rank.is_alive(),
    )


def _settle(rendezvous: Rendezvous) -> None:
    """Give ranks a moment to come to where they would wait for the one that failed, or to fail likewise."""
    assert rendezvous.fault is not None
    deadline = time.monotonic() + (0 if rendezvous.fault.kind in ("timeout", "interrupted") else SETTLE)
    with rendezvous.changed:
        while rendezvous.busy(State.RUNNING) and (left := deadline - time.monotonic()) > 0:
            rendezvous.changed.wait(left)


def _stop(rendezvous: ThreadRendezvous, ranks: list[Rank]) -> None:
    """End the ranks that have not left by themselves."""
    rendezvous.stop()
    _send_stopped(rendezvous, ranks, every=0.02, seconds=GRACE / 2)
    # Who is still there catches everything. A second exception that comes while the first is handled gets through
    # a loop of `try: ... except: pass`; for that, threads must take turns faster than every 5 ms.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    _send_stopped(rendezvous, ranks, every=1e-4, seconds=GRACE / 2)
    sys.setswitchinterval(interval)
    stopping.settle()


def _send_stopped(rendezvous: ThreadRendezvous, ranks: list[Rank], *, every: float, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while rendezvous.busy(State.RUNNING, State.WAITING) and time.monotonic() < deadline:
        for rank, state in zip(ranks, rendezvous.states, strict=True):
            if state in (State.RUNNING, State.WAITING):
                rank.stop()
        with rendezvous.changed:
            rendezvous.changed.wait(every)


def _close(rendezvous: ThreadRendezvous, ranks: list[Rank]) -> None:
    """Let all ranks that have left close their groups, together."""
    # A callback of the learner's that holds a group must not be the last to do so: gloo's thread, which it runs on,
    # is joined when the group ends, and a thread that joins itself ends the process.
    deadline = time.monotonic() + GRACE
    while rendezvous.delivering and time.monotonic() < deadline:
        time.sleep(1e-4)
    with gloo.loopback.hurried():
        for rank in ranks:
            rank.finish.set()
        for rank, state in zip(ranks, rendezvous.states, strict=True):
            # One that has not left may still: inside gloo, it is freed when a peer closes its end.
            rank.join(timeout=5 if state in (State.RETURNED, State.RAISED) else 0.2)
        if any(group() is not None for rank in ranks for group in rank.left_groups):
            gc.collect()  # models and frames that hold groups refer to themselves in cycles
