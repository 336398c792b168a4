"""The coordinator compares the calls of all ranks before any of them reaches gloo.

gloo checks nothing: calls that do not match hang or give wrong numbers. So each rank first reports its call here. The
coordinator compares it with the other members' calls. When the last member calls, all calls go to the backend at once.
So a call that reached gloo always finishes, a waiting rank can be stopped, and an error is found at once: a call that
differs, a peer that has left, ranks that wait for each other.

    PendingCall   the calls of one collective (or of one message: a send and its recv), one for each member
    LocalCall     one of these calls on its rank's side: when it enters the backend, and where its result goes
    Progress      what becomes of a call: its times, and whether its result has arrived. The record of a call is frozen
    Matching      finds the pending call that a call belongs to
    Fault         the reason why the run cannot go on; the first one counts. Ranks are stopped shortly afterwards, so
                  that the message can say where each of them would have waited.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ...meter import SourceLine
from .call import Call
from .fault import Fault, Kind, Leaving, RankReport, State
from .matching import Matching, PendingCall, uneven_splits

LOOK = 2.0  # seconds between two looks for ranks that wait in C++ and cannot report it
HELD = 3.0  # seconds after which such a rank waits, and does not only come through
SETTLE = 0.3  # seconds after a fault in which the other ranks may reach their next wait, or fail too


class Coordinator:
    """The calls of one run: it lets matching calls proceed and finds faults.

    It moves no bytes and waits for nothing: `rank_threads.coordinator` and `processes.run_loop` do. One lock guards it.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.fault: Fault | None = None
        self.stopping = False
        self.states = [State.RUNNING] * world_size
        self.waits: dict[int, PendingCall] = {}
        self.wait_began = [0.0] * world_size
        self.started = time.perf_counter()
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self._matching = Matching()

    # -- events of ranks -----------------------------------------------------------------------------------------

    def arrive(self, rank: int, call: Call, proceed: Callable[[], object]) -> PendingCall:
        """Add a call of `rank`, and return its pending call. `proceed` lets it enter the backend once all have
        called."""
        with self.changed:
            pending = self._matching.pending(rank, call)
            self._join(rank, pending, call, proceed)
            return pending

    def wait(self, rank: int, pending: PendingCall) -> None:
        """Record that `rank` now only waits for `pending`."""
        with self.changed:
            if pending.open:
                self.states[rank], self.waits[rank] = State.WAITING, pending
                self.wait_began[rank] = time.perf_counter()
                self._check_deadlock()
                self._notify_if_over()

    def called_outside(self, rank: int, call: Call) -> None:
        """Fail the run: `rank` called a collective on a group that it does not belong to."""
        with self.changed:
            self._fail(Fault(kind="not_in_group", ranks=(rank,), calls={rank: call}))
            self.wait(rank, PendingCall(members=frozenset({rank}), broken=True, calls={rank: call}))

    def refused(self, pending: PendingCall, ranks: tuple[int, ...], reason: str) -> None:
        """Fail the run: the backend refused the calls of `ranks` after these ranks had gone on."""
        with self.changed:
            self._fail(Fault(kind="refused", ranks=ranks, calls=pending.calls, detail=reason))

    def died(self, rank: int, how: str) -> None:
        """Record that the process of `rank` died. Its peers' errors about broken connections are not the cause."""
        with self.changed:
            self.states[rank] = State.DIED
            if self.stopping:
                return
            if self.fault is not None and self.fault.kind == "raised":
                self.fault = None
            self._fail(Fault(kind="died", ranks=(rank,), detail=how))

    def left(self, rank: int, how: Leaving) -> None:
        """Record that `rank` left the learner's function. If it raised, and was not stopped, fail the run."""
        with self.changed:
            self.states[rank] = State.RETURNED if how == "returned" else State.RAISED
            if how != "returned" and not self.stopping:
                self._fail(Fault(kind=how, ranks=(rank,)))
            for pending in self._matching.open:
                self._check_absent(pending)
            self._check_deadlock()
            self._notify_if_over()

    # -- for the supervisor --------------------------------------------------------------------------------------

    def fail(self, kind: Kind) -> None:
        """End the run for a reason from outside: a timeout or an interrupt."""
        with self.changed:
            self._fail(Fault(kind=kind, ranks=tuple(r for r, s in enumerate(self.states) if s is State.RUNNING)))

    def reports(self, where: Mapping[int, SourceLine | None]) -> list[RankReport]:
        """Return what the ranks in `where` are doing at these lines."""
        with self.changed:
            reports = {
                rank: RankReport(rank=rank, state=self.states[rank].value, source_line=line)
                for rank, line in where.items()
            }
            for rank, pending in self.waits.items():
                waited = time.perf_counter() - self.wait_began[rank]
                call = pending.calls[rank]
                reports[rank] = replace(reports[rank], call=call, missing=pending.missing, waited=waited)
            return list(reports.values())

    def busy(self, *states: State) -> bool:
        return any(state in states for state in self.states)

    @property
    def over(self) -> bool:
        return self.fault is not None or not self.busy(State.RUNNING, State.WAITING)

    # -- the life of a call --------------------------------------------------------------------------------------

    def _join(self, rank: int, pending: PendingCall, call: Call, proceed: Callable[[], object]) -> None:
        detail = pending.disagreement(call)
        pending.calls[rank] = call.with_match(pending.number)
        pending.proceed.append(proceed)
        if detail:
            self._break(pending, Fault(kind="mismatch", ranks=tuple(pending.calls), calls=pending.calls, detail=detail))
        self._check_absent(pending)
        if not pending.open:
            self._release(pending)

    def _release(self, pending: PendingCall) -> None:
        """Let the calls enter the backend: every member has called."""
        if any(self.states[rank] is State.DIED for rank in pending.members):
            self._matching.mark_broken(pending)
            return
        uneven = uneven_splits(pending.calls)
        if uneven:
            self._break(pending, Fault(kind="mismatch", ranks=uneven, calls=pending.calls, detail="split sizes"))
            return
        for proceed in pending.proceed:
            proceed()
        pending.proceed.clear()
        for rank in [rank for rank, waited in self.waits.items() if waited is pending]:
            self.states[rank] = State.RUNNING  # at once, although its thread may wake later
            del self.waits[rank]

    def _notify_if_over(self) -> None:
        if self.over:
            self.changed.notify_all()

    def _break(self, pending: PendingCall, fault: Fault) -> None:
        self._matching.mark_broken(pending)
        self._fail(fault)

    # -- faults --------------------------------------------------------------------------------------------------

    def _fail(self, fault: Fault) -> None:
        if self.fault is None:
            self.fault = fault
        self.changed.notify_all()

    def _check_absent(self, pending: PendingCall) -> None:
        """Fail the run if a call needs a rank that has returned."""
        gone = tuple(sorted(r for r in pending.missing if self.states[r] is State.RETURNED))
        if gone and pending.calls:
            self._fail(Fault(kind="absent", ranks=gone, calls=pending.calls))

    def _check_deadlock(self) -> None:
        """Fail the run if some ranks wait only for each other."""
        stuck = {rank for rank, pending in self.waits.items() if not pending.broken}
        gone = {rank for rank, state in enumerate(self.states) if state is State.RETURNED}
        while True:
            free = {rank for rank in stuck if self.waits[rank].missing.isdisjoint(stuck | gone)}
            if not free:
                break
            stuck -= free
        if stuck:
            calls = {rank: self.waits[rank].calls[rank] for rank in sorted(stuck)}
            self._fail(Fault(kind="deadlock", ranks=tuple(sorted(stuck)), calls=calls))
