"""Where the calls of ranks meet before any of them reaches gloo.

gloo checks nothing: calls that do not fit hang, or give wrong numbers. So each rank first shows its call here. The
first comer of a collective waits, the others are compared with it, and when the last member has come its calls go
to the backend all at once. Hence a call that reached gloo always finishes, a rank that waits can be told to stop,
and what is wrong is known when it happens: a call that differs, a peer that has left, ranks that wait for each other.

    Meeting     the calls of one collective (or of one message: a send and its recv), one for each member
    Fault       why the run cannot go on; the first one wins. Ranks are stopped a moment later: until then they go
                on to where they would wait, so that the message can tell where that is.
    Stopped     what ends them then: raised wherever they are
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from math import inf
from typing import Any

import torch

from . import torch_internals
from .arguments import check
from .calls import OPS, Call, Times, describe
from .sites import called_from_python, learner_site


class Stopped(BaseException):
    """Ends a rank whose run has failed; not an Exception, so that a learner's `except Exception` lets it pass."""


class State(Enum):
    """What a rank is doing."""

    RUNNING = "running"
    WAITING = "waiting"
    RETURNED = "returned"
    RAISED = "raised"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a run cannot go on.

    Attributes:
        kind: raised, exited, mismatch, absent, deadlock, not_in_group, timeout or interrupted.
        ranks: the ranks to blame, or to look at first.
        calls: the calls that the fault is about, by rank; ranks that come late are added.
        detail: for a mismatch, the property that differs.
    """

    kind: str
    ranks: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    detail: str = ""


@dataclass(eq=False, kw_only=True)
class Meeting:
    """The calls of one collective or one message, until every member has come."""

    members: frozenset[int]
    any_member: bool = False  # a recv from any rank: one of the members is enough
    broken: bool = False  # its calls do not fit: it never takes place
    calls: dict[int, Call] = field(default_factory=dict)
    execute: dict[int, Callable[[], Any]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, RuntimeError] = field(default_factory=dict)
    futures: dict[int, torch.futures.Future[Any]] = field(default_factory=dict)

    @property
    def missing(self) -> frozenset[int]:
        return self.members - self.calls.keys()

    @property
    def open(self) -> bool:
        return self.broken or bool(self.missing)


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
        self._open: dict[Hashable, Meeting] = {}
        self._ordinals: Counter[tuple[int, Hashable]] = Counter()
        self._numbers: Counter[tuple[int, str, str]] = Counter()
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
            call = self._numbered(rank, call)
            self.log[rank].append(call)
            if call.op == "recv" and call.root is None:
                return self._receive_from_any(rank, call, arguments["tag"], execute)
            if call.op in ("send", "recv"):
                meeting = self._message(rank, call, arguments["tag"])
                waits = False
            else:
                key = (call.group_name, self._next(rank, call.group_name))
                meeting = self._open.setdefault(key, Meeting(members=frozenset(call.ranks)))
                waits = name == "monitored_barrier_" or not arguments.get("async_op", True)
                if meeting.missing == {rank}:
                    del self._open[key]
            if not waits:
                return self._take_part_later(rank, meeting, call, operator, arguments, execute)
            call.times.waited_from = call.times.issued
            self._join(rank, meeting, call, execute)
            self._wait(rank, meeting)
            if rank in meeting.errors:
                raise meeting.errors[rank]
            result = meeting.results.pop(rank)
        if result is not None:
            torch_internals.work_of(result).wait()  # the caller would do so next; here the end is seen
        call.times.done = time.perf_counter()
        return result

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
        future: torch.futures.Future[Any] = torch.futures.Future()
        meeting.futures[rank] = future
        result, work = torch_internals.pending_result(operator, arguments, future.then(_delivered))
        self._works[rank][id(work)] = (work, meeting)
        future.add_done_callback(partial(self._forget, rank, id(work)))
        self._join(rank, meeting, call, execute)
        return result

    def new_group(self, rank: int, group_name: str, ranks: list[int]) -> None:
        """Wait until every member creates the group: gloo's own wait for a missing one could not be stopped."""
        call = Call(op="new_group", group_name=group_name, ranks=tuple(ranks), site=learner_site())
        with self.changed:
            key = ("new_group", group_name)
            meeting = self._open.setdefault(key, Meeting(members=frozenset(ranks)))
            if meeting.missing == {rank}:
                del self._open[key]
            self.log[rank].append(call)
            call.times.waited_from = call.times.issued
            self._join(rank, meeting, call, lambda: None)
            self._wait(rank, meeting)
        call.times.done = time.perf_counter()

    def entered(self, rank: int) -> None:
        """`rank` is about to run the learner's function."""
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
            for meeting in self._open.values():
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
            for meeting in self._open.values():
                for future in meeting.futures.values():
                    future.set_result(RuntimeError("the run was stopped; the message tells which rank failed"))
            self.changed.notify_all()

    def busy(self, *states: State) -> bool:
        """Whether any rank is in one of `states`."""
        return any(state in states for state in self.states)

    @property
    def over(self) -> bool:
        """Whether every rank has left, or the run has failed."""
        return self.fault is not None or not self.busy(State.RUNNING, State.WAITING)

    # -- meetings ------------------------------------------------------------------------------------------------

    def _next(self, rank: int, line: Hashable) -> int:
        self._ordinals[rank, line] += 1
        return self._ordinals[rank, line]

    def _numbered(self, rank: int, call: Call) -> Call:
        counter = (rank, call.group_name, call.op)
        self._numbers[counter] += 1
        return replace(call, number=self._numbers[counter])

    def _message(self, rank: int, call: Call, tag: int) -> Meeting:
        """The meeting of a send and its recv: the k-th of each for one (sender, receiver, tag)."""
        assert call.root is not None
        pair = (rank, call.root) if call.op == "send" else (call.root, rank)
        line = (call.group_name, *pair, tag)
        key = (*line, self._next(rank, (call.op, *line)))
        meeting = self._open.get(key)
        if meeting is None and call.op == "send":
            meeting = self._open.pop(("any", call.group_name, call.root, tag), None)
            if meeting is not None:
                self._next(call.root, ("recv", *line))
                meeting.members, meeting.any_member = frozenset(pair), False
                return meeting
        if meeting is None:
            meeting = self._open[key] = Meeting(members=frozenset(pair))
        else:
            del self._open[key]
        return meeting

    def _receive_from_any(self, rank: int, call: Call, tag: int, execute: Callable[[], Any]) -> Any:
        """A recv with no source: waits here even when asynchronous, for its peer is not known before."""
        for sender in call.ranks:
            line = (call.group_name, sender, rank, tag)
            key = (*line, self._ordinals[rank, ("recv", *line)] + 1)
            if key in self._open:
                self._next(rank, ("recv", *line))
                meeting = self._open.pop(key)
                break
        else:
            meeting = Meeting(members=frozenset(call.ranks), any_member=True)
            self._open["any", call.group_name, rank, tag] = meeting
        call.times.waited_from = call.times.issued
        self._join(rank, meeting, call, execute)
        self._wait(rank, meeting)
        call.times.done = time.perf_counter()  # nearly: the message is on its way, and its Work can be waited for once
        return meeting.results.pop(rank)

    def _join(self, rank: int, meeting: Meeting, call: Call, execute: Callable[[], Any]) -> None:
        if self.stopping:
            raise Stopped
        detail = next(filter(None, (difference(theirs, call) for theirs in meeting.calls.values())), "")
        meeting.calls[rank], meeting.execute[rank] = call, execute
        if detail:
            meeting.broken = True
            self._fail(Fault(kind="mismatch", ranks=tuple(meeting.calls), calls=meeting.calls, detail=detail))
        self._check_absent(meeting)
        if not meeting.open:
            self._hold(meeting)
        if meeting.broken:
            self._wait(rank, meeting)

    def _hold(self, meeting: Meeting) -> None:
        """Everyone has come: hand all calls to the backend, where they are matched in this same order."""
        uneven = uneven_splits(meeting.calls)
        if uneven:
            meeting.broken = True
            self._fail(Fault(kind="mismatch", ranks=uneven, calls=meeting.calls, detail="split sizes"))
            return
        if self.diverged is None and len({call.site for call in meeting.calls.values()}) > 1:
            self.diverged = meeting
        matched = time.perf_counter()
        for call in meeting.calls.values():
            call.times.matched = matched
        for rank, execute in meeting.execute.items():
            # A monitored barrier is over when all have come; gloo's own would block here, one rank after the other.
            try:
                meeting.results[rank] = execute() if meeting.calls[rank].op != "monitored_barrier" else None
            except RuntimeError as error:  # the backend refuses this rank's call; its peers wait until it has left
                meeting.errors[rank] = error
        for rank, future in meeting.futures.items():
            if rank in meeting.errors:
                future.set_result(meeting.errors[rank])
                continue
            work, call = torch_internals.work_of(meeting.results.pop(rank)), meeting.calls[rank]
            if call.op in ("send", "recv"):
                work.wait()  # gloo's messages have no future to chain; both sides are here, so this is short
                call.times.done = time.perf_counter()
                future.set_result([])
            else:
                _chain(work, future, call.times)
        meeting.execute.clear()
        for rank in [rank for rank, waited in self.waits.items() if waited is meeting]:
            self.states[rank] = State.RUNNING  # from now on, though its thread may wake later
            del self.waits[rank]
        self.changed.notify_all()

    def _wait(self, rank: int, meeting: Meeting) -> None:
        if meeting.open:
            self.states[rank], self.waits[rank] = State.WAITING, meeting
            self._check_deadlock()
            self.changed.notify_all()
            while meeting.open and not self.stopping:
                self.changed.wait()
        if self.stopping:
            raise Stopped

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
            free = {rank for rank in stuck if not _hopeless(self.waits[rank], stuck | gone)}
            if not free:
                break
            stuck -= free
        if stuck:
            calls = {rank: self.waits[rank].calls[rank] for rank in sorted(stuck)}
            self._fail(Fault(kind="deadlock", ranks=tuple(sorted(stuck)), calls=calls))


def _hopeless(meeting: Meeting, without: set[int]) -> bool:
    missing = meeting.missing
    return bool(missing) and (missing <= without if meeting.any_member else not missing.isdisjoint(without))


def _chain(work: Any, future: torch.futures.Future[Any], times: Times) -> None:
    """Let `future` end as the backend's `work` does: with its value, or with the error as its value."""

    def finish(done: torch.futures.Future[Any]) -> None:
        held.clear()
        times.done = time.perf_counter()
        try:
            future.set_result(done.value())
        except RuntimeError as error:
            future.set_result(error)

    held = [work]  # the backend forgets a work whose last reference goes, finished or not
    work.get_future().add_done_callback(finish)


def _delivered(done: torch.futures.Future[Any]) -> Any:
    """What a rank's future gives. Raised here, an error is one for torch's C++ too: DDP's reducer would take an
    exception that is kept as a value (as `Future.set_exception` does) for its tensors, and end the process."""
    value = done.value()
    if isinstance(value, BaseException):
        raise value
    return value


def difference(one: Call, other: Call) -> str:
    """The first property in which two calls of one meeting must agree and do not; empty when they agree."""
    if {one.op, other.op} == {"send", "recv"}:
        checks: tuple[tuple[str, Any, Any], ...] = (
            ("dtype", one.dtype, other.dtype),
            ("number of elements", one.numels, other.numels),
        )
    elif one.op != other.op:
        return "collective"
    else:
        checks = (
            ("members", one.ranks, other.ranks),
            ("root", one.root, other.root),
            ("reduction", one.reduce_op, other.reduce_op),
            ("dtype", one.dtype, other.dtype),
            ("layout", one.layout, other.layout),
        )
        if one.splits is None:
            checks += (("number of elements", one.numels, other.numels), ("shape", one.shapes, other.shapes))
    return next((name for name, mine, theirs in checks if mine != theirs), "")


def uneven_splits(calls: dict[int, Call]) -> tuple[int, ...]:
    """The first (sender, receiver) of an all-to-all whose sizes do not fit; empty when all do."""
    for sender, call in calls.items():
        for position, receiver in enumerate(call.ranks if call.splits else ()):
            theirs = calls[receiver]
            assert call.splits is not None and theirs.splits is not None
            if call.splits[0][position] != theirs.splits[1][call.ranks.index(sender)]:
                return (sender, receiver)
    return ()
