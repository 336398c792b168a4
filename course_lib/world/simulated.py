"""Ranks as threads of this process, with real gloo between them.

One thread a rank runs the learner's function; the thread that called `World.run` supervises: it waits for all to
leave, and ends the run at the first fault, at the time limit or when it is interrupted. Nothing is kept from one run
to the next: groups, threads and sockets are made in a few milliseconds, and closed before the run returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import gloo, interpose, streams, torch_internals
from .calls import Call
from .copies import Copies
from .failure import Interrupted, Raised, RankError, RankReport
from .rendezvous import Fault, Rendezvous, State, Stopped
from .sites import Site, learner_site
from .standins import Shared
from .streams import Streams
from .telling import tell

SETTLE = 0.15
"""Seconds that the other ranks have, after a fault, to come to where they would wait."""

GRACE = 0.4
"""Seconds in which ranks must stop after that, before they are left behind."""


class Rank(threading.Thread):
    """One rank: its thread, its streams and, afterwards, what it returned or raised."""

    def __init__(self, rank: int, rendezvous: Rendezvous, copies: Copies, store: dist.Store) -> None:
        super().__init__(name=f"rank {rank}", daemon=True)
        self.rank = rank
        self.rendezvous = rendezvous
        self.streams = Streams(rank, rendezvous.world_size)
        self.result: Any = None
        self.raised: Raised | None = None
        self.last_site: Site | None = None
        self.finish = threading.Event()
        self.groups: list[weakref.ref[dist.ProcessGroup]] = []
        self._copies = copies
        self._store = store
        self._guard = threading.Lock()
        self._stoppable = False  # whether the thread is in the learner's code, and nowhere that holds a lock of ours

    # -- the interposer of this thread: see interpose.Interposer ---------------------------------------------------

    @property
    def generator(self) -> torch.Generator:
        return self.streams.torch

    def collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[[], Any]) -> Any:
        with self._shielded():
            return self.rendezvous.collective(self.rank, operator, arguments, execute)

    def new_group(self, group_name: str, ranks: list[int]) -> None:
        with self._shielded():
            self.rendezvous.new_group(self.rank, group_name, ranks)

    def not_in_group(self, op: str) -> None:
        with self._shielded():
            self.rendezvous.not_in_group(self.rank, op)

    def waiting(self, work: Any) -> None:
        with self._shielded():
            self.rendezvous.waiting(self.rank, work)

    # -- the thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with interpose.interposed(self), self.streams.own():
            try:
                self._work()
            finally:
                self.finish.wait()
                self._leave_groups()

    def _leave_groups(self) -> None:
        if dist.is_initialized():
            self.groups = [weakref.ref(group) for group in torch_internals.groups()]
            dist.destroy_process_group()

    def _work(self) -> None:
        error = self._call()
        if error is None:
            self.rendezvous.left(self.rank, State.RETURNED)
        elif isinstance(error, Stopped) or self.rendezvous.stopping:  # an error now is what being stopped looks like
            self.rendezvous.left(self.rank, State.RAISED)
        else:
            self.raised = Raised.of(error)
            kind = "exited" if isinstance(error, SystemExit) else "raised"
            self.rendezvous.left(self.rank, State.RAISED, Fault(kind=kind, ranks=(self.rank,)))

    def _call(self) -> BaseException | None:
        """Run the learner's function; what it raised."""
        try:
            dist.init_process_group(
                "gloo",
                store=self._store,
                rank=self.rank,
                world_size=self.rendezvous.world_size,
                timeout=timedelta(hours=1),  # nothing waits inside gloo for a peer: see rendezvous.py
            )
            fn, args, kwargs = self._copies.unpack()
            try:
                self._stoppable = True
                self.rendezvous.entered(self.rank)
                self.result = fn(*args, **kwargs)
            finally:
                self._stoppable = False
                self._outlive_stop()
        except BaseException as error:
            return error
        return None

    def _outlive_stop(self) -> None:
        """Let a `Stopped` that was sent and has not arrived come now, and none after it."""
        with contextlib.suppress(Stopped), self._guard:
            _raise_in(self, None)

    @contextlib.contextmanager
    def _shielded(self) -> Iterator[None]:
        """No `Stopped` is sent while the thread is in here: it could leave a lock held that all ranks need."""
        with self._guard:
            self._stoppable = False
        try:
            yield
        finally:
            self._stoppable = True

    def stop(self) -> None:
        """Raise `Stopped` in the learner's code, if the thread is there."""
        self.streams.stopping = True
        with self._guard:
            if self._stoppable:
                _raise_in(self, Stopped)

    def where(self) -> Site | None:
        """The learner's line that this rank is at."""
        frame = sys._current_frames().get(self.ident or -1)
        return None if frame is None else learner_site(frame)


def _raise_in(thread: threading.Thread, exception: type[BaseException] | None) -> None:
    value = None if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), value)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run gave, by rank.

    Attributes:
        results: what was returned.
        output: what was printed.
        calls: the calls on other ranks, in their order.
        started: when the run began, in seconds of `time.perf_counter`.
        spans: when the rank entered the function and when it left, likewise.
    """

    results: list[Any]
    output: list[str]
    calls: list[list[Call]]
    started: float
    spans: list[tuple[float, float]]


def run(
    world_size: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float
) -> Outcome:
    """Call `fn(*args, **kwargs)` on every rank at once.

    Raises:
        RankError: a rank failed, or the time limit of `timeout` seconds passed.
        KeyboardInterrupt: the run was interrupted.
    """
    copies = Copies(fn, args, kwargs)
    rendezvous, store = Rendezvous(world_size), dist.HashStore()
    ranks = [Rank(rank, rendezvous, copies, store) for rank in range(world_size)]
    interrupt: KeyboardInterrupt | None = None
    with ExitStack() as stack:
        for context in (_process_settings, streams.streams_by_thread, interpose.rank_threads):
            stack.enter_context(context.in_use())
        try:
            for rank in ranks:
                rank.start()
            _supervise(rendezvous, timeout)
        except KeyboardInterrupt as error:
            interrupt = error
            rendezvous.fail("interrupted")
        with _not_interrupted():
            if rendezvous.fault is not None:
                _settle(rendezvous)
                reports = _reports(rendezvous, ranks)
                _stop(rendezvous, ranks)
            _close(rendezvous, ranks)
    outputs = [rank.streams.output for rank in ranks]
    if rendezvous.fault is not None:
        reports = [_completed(report, ranks[report.rank]) for report in reports]
        message = tell(rendezvous.fault, reports, rendezvous.diverged, timeout)
        if interrupt is not None:
            raise Interrupted(message) from None
        raise RankError(
            message, kind=rendezvous.fault.kind, rank=rendezvous.fault.ranks[0], ranks=reports, output=outputs
        )
    return Outcome(
        results=[rank.result for rank in ranks],
        output=outputs,
        calls=rendezvous.log,
        started=rendezvous.started,
        spans=rendezvous.spans,
    )


@contextmanager
def _process_settings_kept() -> Iterator[None]:
    """Undo what ranks set for the whole process, and what `init_process_group` does to `sys.excepthook`."""
    dtype, excepthook = torch.get_default_dtype(), sys.excepthook
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        sys.excepthook = excepthook


_process_settings = Shared(_process_settings_kept)


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """Put an interrupt off to the end of the block, where ranks are stopped and sockets closed."""
    if threading.current_thread() is not threading.main_thread():  # where Python delivers no interrupts
        yield
        return
    late: list[Any] = []
    handler = signal.signal(signal.SIGINT, lambda *signal_and_frame: late.append(signal_and_frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if late and callable(handler):
            handler(*late[0])


def _supervise(rendezvous: Rendezvous, timeout: float) -> None:
    """Wait until the run is over; after `timeout` seconds it is over in any case."""
    deadline = time.monotonic() + timeout
    with rendezvous.changed:
        while not rendezvous.over:
            left = deadline - time.monotonic()
            if left <= 0:
                rendezvous.fail("timeout")
            else:
                rendezvous.changed.wait(min(left, 0.1))  # short: not every interrupt ends a wait


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


def _stop(rendezvous: Rendezvous, ranks: list[Rank]) -> None:
    """End the ranks that have not left by themselves."""
    rendezvous.stop()
    _send_stopped(rendezvous, ranks, every=0.02, seconds=GRACE / 2)
    # Who is still there catches everything. A second exception that comes while the first is handled gets through
    # a loop of `try: ... except: pass`; for that, threads must take turns faster than every 5 ms.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    _send_stopped(rendezvous, ranks, every=1e-4, seconds=GRACE / 2)
    sys.setswitchinterval(interval)


def _send_stopped(rendezvous: Rendezvous, ranks: list[Rank], *, every: float, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while rendezvous.busy(State.RUNNING, State.WAITING) and time.monotonic() < deadline:
        for rank, state in zip(ranks, rendezvous.states, strict=True):
            if state in (State.RUNNING, State.WAITING):
                rank.stop()
        with rendezvous.changed:
            rendezvous.changed.wait(every)


def _close(rendezvous: Rendezvous, ranks: list[Rank]) -> None:
    """Let all ranks that have left close their groups, together."""
    with gloo.loopback.hurried():
        for rank in ranks:
            rank.finish.set()
        for rank, state in zip(ranks, rendezvous.states, strict=True):
            # One that has not left may still: inside gloo, it is freed when a peer closes its end.
            rank.join(timeout=5 if state in (State.RETURNED, State.RAISED) else 0.2)
        if any(group() is not None for rank in ranks for group in rank.groups):
            gc.collect()  # models and frames that hold groups refer to themselves in cycles
