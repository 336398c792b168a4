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
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from . import interpose, torch_internals
from .arguments import check
from .calls import OPS, Call, describe
from .fault import Fault, State, Stopped
from .matching import Matching
from .meeting import Future, Meeting, delivered, uneven_splits
from .sites import called_from_python, learner_site


class Rendezvous:
    """The meetings of one run. Every rank's thread uses it; one lock guards it."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.fault: Fault | None = None
        self.stopping = False
        self.states = [State.RUNNING] * world_size
        self.waits: dict[int, Meeting] = {}
        self.diverged: Meeting | None = None
        self.log: list[list[Call]] = [[] for _ in range(world_size)]
        self.started = time.perf_counter()
        self.spans = [(inf, inf)] * world_size  # when each rank entered the learner's function, and when it left
        self.changed = threading.Condition()
        self._matching = Matching()
        self._threads: dict[int, int] = {}
        self._works: dict[int, dict[int, tuple[Any, Meeting]]] = defaultdict(dict)  # by rank, by id of the Work

    # -- what ranks call -----------------------------------------------------------------------------------------

    def collective(self, rank: int, operator: Any, arguments: dict[str, Any], execute: Callable[[], Any]) -> Any:
        """Take `rank`'s part in a `c10d` operator; see `interpose.Interposer`."""
        name = operator._schema.name.split("::")[1]
        group = torch_internals.group_of(arguments["process_group"])
        reduce_op = torch_internals.reduce_op_name(arguments["reduce_op"]) if "reduce_op" in arguments else None
        op, ranks = OPS.get(name, name), torch_internals.group_ranks(group)
        call = describe(op, group.group_name, ranks, arguments, reduce_op)
        check(op, len(ranks), call.root == rank, arguments)
        with self.changed:
            call = self._matching.numbered(rank, call)
            self.log[rank].append(call)
            if call.op == "recv" and call.root is None:
                meeting = self._matching.message_from_any(rank, call, arguments["tag"])
            elif call.op in ("send", "recv"):
                meeting = self._matching.message(rank, call, arguments["tag"])
                return self._take_part_later(rank, meeting, call, operator, arguments, execute)
            else:
                meeting = self._matching.collective(rank, call)
                if name != "monitored_barrier_" and arguments.get("async_op", True):
                    return self._take_part_later(rank, meeting, call, operator, arguments, execute)
            result = self._take_part_now(rank, meeting, call, execute)
        if result is not None and call.op != "recv":  # the Work of a recv can be waited for once, by the caller
            torch_internals.work_of(result).wait()  # the caller would do so next; here the end is seen
        call.times.done = time.perf_counter()
        return result

    def new_group(self, rank: int, group_name: str, ranks: list[int]) -> None:
        """Wait until every member creates the group: gloo's own wait for a missing one could not be stopped."""
        call = Call(op="new_group", group_name=group_name, ranks=tuple(ranks), site=learner_site())
        with self.changed:
            self.log[rank].append(call)
            self._take_part_now(rank, self._matching.group(group_name, rank, ranks), call, lambda: None)
        call.times.done = time.perf_counter()

    def _take_part_now(self, rank: int, meeting: Meeting, call: Call, execute: Callable[[], Any]) -> Any:
        """Join the meeting and wait for it: what the operator returns. A recv from any rank comes here even when it is
        asynchronous, for its peer is not known before."""
        call.times.waited_from = call.times.issued
        self._join(rank, meeting, call, execute)
        self._wait(rank, meeting)
        if rank in meeting.errors:
            raise meeting.errors[rank]
        return meeting.results.pop(rank)

    def _take_part_later(
        self,
        rank: int,
        meeting: Meeting,
        call: Call,
        operator: Any,
        arguments: dict[str, Any],
        execute: Callable[[], Any],
    ) -> Any:
        """Join the meeting and go on: the result holds a Work, to wait for what comes of it."""
        in_backward = torch_internals.at_end_of_backward(call.times.wait_begins, call.times.wait_ends)
        if not in_backward and not called_from_python():
            call.times.waited_from = call.times.issued
        future = meeting.futures[rank] = Future()
        interposer = interpose.current()
        assert interposer is not None
        meeting.identities[rank] = interposer.identity
        result, work = torch_internals.pending_result(operator, arguments, future.then(delivered))
        self._works[rank][id(work)] = (work, meeting)
        future.add_done_callback(partial(self._forget, rank, id(work)))
        self._join(rank, meeting, call, execute)
        return result

    def entered(self, rank: int) -> None:
        """`rank` is about to run the learner's function, on this thread."""
        self._threads[rank] = threading.get_ident()
        self.spans[rank] = (time.perf_counter(), inf)

    def waiting(self, rank: int, work: Any) -> None:
        """Wait until the meeting behind `work` has everyone; the work itself then finishes soon."""
        with self.changed:
            _, meeting = self._works[rank].get(id(work), (None, None))
            if meeting is not None:
                meeting.calls[rank].times.wait_begins()
                self._wait(rank, meeting)

    def _forget(self, rank: int, work_id: int, _: Any) -> None:
        self._works[rank].pop(work_id, None)

    def not_in_group(self, rank: int, op: str) -> None:
        """Fail the run: `rank` called a collective of a group that it does not belong to."""
        call = Call(op=op, group_name="", ranks=(), site=learner_site())
        with self.changed:
            self._fail(Fault(kind="not_in_group", ranks=(rank,), calls={rank: call}))
            self._wait(rank, Meeting(members=frozenset({rank}), broken=True, calls={rank: call}))

    def left(self, rank: int, state: State, fault: Fault | None = None) -> None:
        """`rank` is done: it returned, or it raised and brings the fault."""
        self.spans[rank] = (self.spans[rank][0], time.perf_counter())
        with self.changed:
            self.states[rank] = state
            if fault is not None:
                self._fail(fault)
            for meeting in self._matching.open:
                self._check_absent(meeting)
            self._check_deadlock()
            self.changed.notify_all()

    # -- what the supervisor calls -------------------------------------------------------------------------------

    def fail(self, kind: str) -> None:
        """End the run for a reason from outside: a timeout, an interrupt."""
        with self.changed:
            self._fail(Fault(kind=kind, ranks=tuple(r for r, s in enumerate(self.states) if s is State.RUNNING)))

    def stop(self) -> None:
        """From now on, a rank that waits, or comes to a call, is stopped."""
        with self.changed:
            self.stopping = True
            for meeting in self._matching.open:
                meeting.call_off()
            self.changed.notify_all()

    def busy(self, *states: State) -> bool:
        """Whether any rank is in one of `states`."""
        return any(state in states for state in self.states)

    @property
    def over(self) -> bool:
        """Whether every rank has left, or the run has failed."""
        return self.fault is not None or not self.busy(State.RUNNING, State.WAITING)

    @property
    def delivering(self) -> bool:
        """Whether a result is on its way to a rank, maybe to one that has left without waiting for it."""
        return any(call.times.delivering for calls in self.log for call in calls)

    # -- a call, from its coming to its taking place -------------------------------------------------------------

    def _join(self, rank: int, meeting: Meeting, call: Call, execute: Callable[[], Any]) -> None:
        if self.stopping:
            raise Stopped
        detail = meeting.disagreement(call)
        meeting.calls[rank], meeting.execute[rank] = call, execute
        if detail:
            self._break(meeting, Fault(kind="mismatch", ranks=tuple(meeting.calls), calls=meeting.calls, detail=detail))
        self._check_absent(meeting)
        if not meeting.open:
            self._hold(meeting)
        if meeting.broken:
            self._wait(rank, meeting)

    def _hold(self, meeting: Meeting) -> None:
        """Everyone has come."""
        uneven = uneven_splits(meeting.calls)
        if uneven:
            self._break(meeting, Fault(kind="mismatch", ranks=uneven, calls=meeting.calls, detail="split sizes"))
            return
        if self.diverged is None and len({call.site for call in meeting.calls.values()}) > 1:
            self.diverged = meeting
        someone_went_on = bool(meeting.futures)
        meeting.take_place()
        if meeting.errors and someone_went_on:  # who would not hear of it: C++ waits for a Work and looks away
            refused, told = tuple(meeting.errors), str(next(iter(meeting.errors.values())))
            self._fail(Fault(kind="refused", ranks=refused, calls=meeting.calls, detail=told))
        for rank in [rank for rank, waited in self.waits.items() if waited is meeting]:
            self.states[rank] = State.RUNNING  # from now on, though its thread may wake later
            del self.waits[rank]
        self.changed.notify_all()

    def _wait(self, rank: int, meeting: Meeting) -> None:
        if meeting.open:
            if self._threads[rank] == threading.get_ident():  # a callback's wait does not keep its rank from going on
                self.states[rank], self.waits[rank] = State.WAITING, meeting
                self._check_deadlock()
                self.changed.notify_all()
            while meeting.open and not self.stopping:
                self.changed.wait()
        if self.stopping:
            raise Stopped

    def _break(self, meeting: Meeting, fault: Fault) -> None:
        self._matching.never(meeting)
        self._fail(fault)

    # -- faults --------------------------------------------------------------------------------------------------

    def _fail(self, fault: Fault) -> None:
        if self.fault is None:
            self.fault = fault
        self.changed.notify_all()

    def _check_absent(self, meeting: Meeting) -> None:
        """Fail when a call needs a rank that has returned."""
        gone = tuple(sorted(r for r in meeting.missing if self.states[r] is State.RETURNED))
        if gone and meeting.calls and (not meeting.any_member or set(gone) == meeting.missing):
            self._fail(Fault(kind="absent", ranks=gone, calls=meeting.calls))

    def _check_deadlock(self) -> None:
        """Fail when ranks wait for each other: each of them misses another of them, and so none can go on."""
        stuck = {rank for rank, meeting in self.waits.items() if not meeting.broken}
        gone = {rank for rank, state in enumerate(self.states) if state is State.RETURNED}
        while True:
            free = {rank for rank in stuck if not self.waits[rank].hopeless_without(stuck | gone)}
            if not free:
                break
            stuck -= free
        if stuck:
            calls = {rank: self.waits[rank].calls[rank] for rank in sorted(stuck)}
            self._fail(Fault(kind="deadlock", ranks=tuple(sorted(stuck)), calls=calls))
