"""The simulated backend: ranks are threads of this process, with real gloo between them.

One thread for each rank runs the learner's function. The thread that called `World.run` supervises: it waits for all
ranks, and ends the run at the first fault, the time limit or an interrupt. Nothing is kept between runs: groups,
threads and sockets are made in a few milliseconds, and closed before the run returns.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch.distributed as dist

from ...errors import CourseError
from ...meter import MemoryMeter
from .. import measured
from ..collectives.coordinator import SETTLE, Coordinator
from ..collectives.fault import RankReport, State
from ..errors.message import error_of
from ..learner_code import source_line_of
from ..pickling import Copies
from ..rank_threads import interrupts, one_process, process_state, stopping
from ..run import Outcome
from ..torch_hooks import gloo
from .coordinator import ThreadCoordinator
from .open_files import make_room
from .rank import Rank

MAX_RANKS = 64
"""The most ranks of a simulated world."""

GRACE = 0.4
"""Seconds in which ranks must stop, before they are abandoned."""


class Simulated:
    """A world of threads: see `backends.Backend`.

    Raises:
        CourseError: the world would have no rank, or more than `MAX_RANKS`.
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
        make_room(self._world_size)
        coordinator = ThreadCoordinator(self._world_size)
        ranks = _ranks(coordinator, copies, size_of)
        reports = _run_loop(coordinator, ranks, timeout, late, measured=size_of is not None)
        outputs = [rank.rank_state.output for rank in ranks]
        if (fault := coordinator.fault) is not None:
            if fault.kind == "interrupted":
                late.clear()
            ended = [r.ended(ranks[r.rank].raised, stopped=not ranks[r.rank].is_alive()) for r in reports]
            raise error_of(fault, ended, coordinator.diverged, timeout, outputs)
        return Outcome(
            results=[rank.result for rank in ranks],
            output=outputs,
            calls=coordinator.log,
            started=coordinator.started,
            spans=coordinator.spans,
            memory=[rank.meter.report() for rank in ranks if rank.meter is not None],
        )


def _ranks(coordinator: ThreadCoordinator, copies: Copies, size_of: Callable[[int], int] | None) -> list[Rank]:
    store = dist.HashStore()
    ranks = [Rank(rank, coordinator, copies, store) for rank in range(coordinator.world_size)]
    if size_of is not None:
        meters: WeakSet[MemoryMeter] = WeakSet()  # weak, because each meter holds this set
        for rank in ranks:
            rank.meter = measured.memory_meter(rank.rank, coordinator.started, size_of, meters)
    return ranks


def _run_loop(
    coordinator: ThreadCoordinator, ranks: list[Rank], timeout: float, late: list[Any], *, measured: bool
) -> list[RankReport]:
    """Run the ranks until they have left or are stopped. Return what each rank was doing at a fault."""
    reports: list[RankReport] = []
    with process_state.of_threads(measured=measured), one_process.one_at_a_time.in_use():
        for rank in ranks:
            rank.start()
        _supervise(coordinator, timeout, late)
        if coordinator.fault is not None:
            _settle(coordinator)
            reports = coordinator.reports(lambda rank: source_line_of(ranks[rank]))
            _stop(coordinator, ranks)
        _close(coordinator, ranks)
    return reports


def _supervise(coordinator: Coordinator, timeout: float, late: list[Any]) -> None:
    """Wait until the run is over. Fail it after `timeout` seconds, or when `late` holds an interrupt."""
    deadline = time.monotonic() + timeout
    with coordinator.changed:
        while not coordinator.over:
            left = deadline - time.monotonic()
            if late:
                coordinator.fail("interrupted")
            elif left <= 0:
                coordinator.fail("timeout")
            else:
                coordinator.changed.wait(min(left, 0.1))  # short, to notice `late`


def _settle(coordinator: Coordinator) -> None:
    """Wait a moment, in which ranks reach their next wait or fail too."""
    assert coordinator.fault is not None
    deadline = time.monotonic() + (0 if coordinator.fault.from_outside else SETTLE)
    with coordinator.changed:
        while coordinator.busy(State.RUNNING) and (left := deadline - time.monotonic()) > 0:
            coordinator.changed.wait(left)


def _stop(coordinator: ThreadCoordinator, ranks: list[Rank]) -> None:
    """Stop the ranks that have not left by themselves."""
    coordinator.stop()
    _send_stopped(coordinator, ranks, every=0.02, seconds=GRACE / 2, importing=stopping.IMPORTING)
    # A rank that is still running catches everything. A second exception during the handling of the first leaves a loop
    # of `try: ... except: pass`. For that, threads must switch more often than every 5 ms.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    _send_stopped(coordinator, ranks, every=1e-4, seconds=GRACE / 2)
    sys.setswitchinterval(interval)
    stopping.stop_looking()


def _send_stopped(
    coordinator: ThreadCoordinator, ranks: list[Rank], *, every: float, seconds: float, importing: float = 0
) -> None:
    """Send `Stopped` for `seconds`, except to ranks that import a module: their imports extend the time, up to
    `importing`."""
    began = time.monotonic()
    deadline = began + seconds
    while coordinator.busy(State.RUNNING, State.WAITING) and (now := time.monotonic()) < deadline:
        for rank, state in zip(ranks, coordinator.states, strict=True):
            if state in (State.RUNNING, State.WAITING):
                if now < began + importing and stopping.imports(rank):
                    deadline = now + seconds
                else:
                    rank.stop()
        with coordinator.changed:
            coordinator.changed.wait(every)


def _close(coordinator: ThreadCoordinator, ranks: list[Rank]) -> None:
    """Let all ranks that have left close their groups, at the same time."""
    # A learner's callback must not hold the last reference to a group. It runs on gloo's thread, which is joined when
    # the group ends, and a thread that joins itself ends the process.
    deadline = time.monotonic() + GRACE
    while coordinator.delivering and time.monotonic() < deadline:
        time.sleep(1e-4)
    with gloo.loopback.hurried():
        for rank in ranks:
            rank.finish.set()
        for rank, state in zip(ranks, coordinator.states, strict=True):
            # A rank inside gloo may still leave: it is freed when a peer closes its end.
            rank.join(timeout=5 if state in (State.RETURNED, State.RAISED) else 0.2)
        if any(group() is not None for rank in ranks for group in rank.left_groups):
            gc.collect()  # models and frames that hold groups are in reference cycles
