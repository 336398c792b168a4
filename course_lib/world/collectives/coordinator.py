"""Where the calls of ranks meet before any of them reaches gloo.

gloo checks nothing: calls that do not fit hang, or give wrong numbers. So each rank first shows its call here. The
first comer of a collective waits, the others are compared with it, and when the last member has come its calls go
to the backend all at once. Hence a call that reached gloo always finishes, a rank that waits can be told to stop,
and what is wrong is known when it happens: a call that differs, a peer that has left, ranks that wait for each other.

    Meeting     the calls of one collective (or of one message: a send and its recv), one for each member
    Matching    which calls belong to one meeting
    Fault       why the run cannot go on; the first one wins. Ranks are stopped a moment later: until then they go
                on to where they would wait, so that the message can tell where that is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ..learner_code import SourceLine
from .call import Call
from .fault import Fault, Kind, RankReport, State
from .matching import Matching
from .pending import PendingCall, uneven_splits

SETTLE = 0.15
"""Seconds that the other ranks have, after a fault, to come to where they would wait, or to fail likewise."""


class Coordinator:
    """The meetings of one run: what ranks may do together, and what is wrong. It moves no bytes and waits for nobody;
    see `threads.ThreadRendezvous` and `conduct.Conduct` for who does. One lock guards it."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.fault: Fault | None = None
        self.stopping = False
        self.states = [State.RUNNING] * world_size
        self.waits: dict[int, PendingCall] = {}
        self.diverged: PendingCall | None = None
        self.started = time.perf_counter()
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self._matching = Matching()

    # -- what ranks do -------------------------------------------------------------------------------------------

    def come(self, rank: int, call: Call, tag: int, execute: Callable[[], Any]) -> PendingCall:
        """`rank` has come to `call`: its meeting. `execute` lets the call take place, once everyone is there."""
        with self.changed:
            pending = self._matching.pending(rank, call, tag)
            self._join(rank, pending, call, execute)
            return pending

    def wait(self, rank: int, pending: PendingCall) -> None:
        """`rank` does nothing from now on but wait for `meeting`."""
        with self.changed:
            if pending.open:
                self.states[rank], self.waits[rank] = State.WAITING, pending
                self._check_deadlock()
                self._tell_if_over()

    def outside(self, rank: int, call: Call) -> None:
        """Fail the run: `rank` made a call of a group that it does not belong to."""
        with self.changed:
            self._fail(Fault(kind="not_in_group", ranks=(rank,), calls={rank: call}))
            self.wait(rank, PendingCall(members=frozenset({rank}), broken=True, calls={rank: call}))

    def refused(self, pending: PendingCall, ranks: tuple[int, ...], told: str) -> None:
        """Fail the run: the backend refused the calls of `ranks`, when it was too late to tell them."""
        with self.changed:
            self._fail(Fault(kind="refused", ranks=ranks, calls=pending.calls, detail=told))

    def died(self, rank: int, how: str) -> None:
        """The process of `rank` is gone, and nothing more comes of it. What its peers said of the broken connection is
        not the cause."""
        with self.changed:
            self.states[rank] = State.DIED
            if self.stopping:
                return
            if self.fault is not None and self.fault.kind == "raised":
                self.fault = None
            self._fail(Fault(kind="died", ranks=(rank,), detail=how))

    def left(self, rank: int, state: State, fault: Fault | None = None) -> None:
        """`rank` is done: it returned, or it raised and brings the fault."""
        with self.changed:
            self.states[rank] = state
            if fault is not None:
                self._fail(fault)
            for pending in self._matching.open:
                self._check_absent(pending)
            self._check_deadlock()
            self._tell_if_over()

    # -- what the supervisor calls -------------------------------------------------------------------------------

    def fail(self, kind: Kind) -> None:
        """End the run for a reason from outside: a timeout, an interrupt."""
        with self.changed:
            self._fail(Fault(kind=kind, ranks=tuple(r for r, s in enumerate(self.states) if s is State.RUNNING)))

    def stop(self) -> None:
        """From now on, a rank that waits, or comes to a call, is stopped."""
        with self.changed:
            self.stopping = True
            for pending in self._matching.open:
                pending.call_off()

    def reports(self, where: Callable[[int], SourceLine | None]) -> list[RankReport]:
        """What each rank is doing; `where` gives the line of the learner's that a rank is at."""
        with self.changed:
            calls = {rank: pending.calls[rank] for rank, pending in self.waits.items()}
            return [
                RankReport(rank=rank, state=state.value, source_line=where(rank), call=calls.get(rank))
                for rank, state in enumerate(self.states)
            ]

    def busy(self, *states: State) -> bool:
        """Whether any rank is in one of `states`."""
        return any(state in states for state in self.states)

    @property
    def over(self) -> bool:
        """Whether every rank has left, or the run has failed."""
        return self.fault is not None or not self.busy(State.RUNNING, State.WAITING)

    # -- a call, from its coming to its taking place -------------------------------------------------------------

    def _join(self, rank: int, pending: PendingCall, call: Call, execute: Callable[[], Any]) -> None:
        detail = pending.disagreement(call)
        pending.calls[rank], pending.execute[rank] = call, execute
        if detail:
            self._break(pending, Fault(kind="mismatch", ranks=tuple(pending.calls), calls=pending.calls, detail=detail))
        self._check_absent(pending)
        if not pending.open:
            self._hold(pending)

    def _hold(self, pending: PendingCall) -> None:
        """Everyone has come."""
        if any(self.states[rank] is State.DIED for rank in pending.members):
            self._matching.never(pending)
            return
        uneven = uneven_splits(pending.calls)
        if uneven:
            self._break(pending, Fault(kind="mismatch", ranks=uneven, calls=pending.calls, detail="split sizes"))
            return
        if self.diverged is None and len({call.source_line for call in pending.calls.values()}) > 1:
            self.diverged = pending
        someone_went_on = bool(pending.futures)
        pending.take_place()
        if pending.errors and someone_went_on:  # who would not hear of it: C++ waits for a Work and looks away
            self.refused(pending, tuple(pending.errors), str(next(iter(pending.errors.values()))))
        for rank in [rank for rank, waited in self.waits.items() if waited is pending]:
            self.states[rank] = State.RUNNING  # from now on, though its thread may wake later
            del self.waits[rank]

    def _tell_if_over(self) -> None:
        if self.over:
            self.changed.notify_all()

    def _break(self, pending: PendingCall, fault: Fault) -> None:
        self._matching.never(pending)
        self._fail(fault)

    # -- faults --------------------------------------------------------------------------------------------------

    def _fail(self, fault: Fault) -> None:
        if self.fault is None:
            self.fault = fault
        self.changed.notify_all()

    def _check_absent(self, pending: PendingCall) -> None:
        """Fail when a call needs a rank that has returned."""
        gone = tuple(sorted(r for r in pending.missing if self.states[r] is State.RETURNED))
        if gone and pending.calls and (not pending.any_member or set(gone) == pending.missing):
            self._fail(Fault(kind="absent", ranks=gone, calls=pending.calls))

    def _check_deadlock(self) -> None:
        """Fail when ranks wait for each other: each of them misses another of them, and so none can go on."""
        stuck = {rank for rank, pending in self.waits.items() if not pending.broken}
        gone = {rank for rank, state in enumerate(self.states) if state is State.RETURNED}
        while True:
            free = {rank for rank in stuck if not self.waits[rank].hopeless_without(stuck | gone)}
            if not free:
                break
            stuck -= free
        if stuck:
            calls = {rank: self.waits[rank].calls[rank] for rank in sorted(stuck)}
            self._fail(Fault(kind="deadlock", ranks=tuple(sorted(stuck)), calls=calls))
