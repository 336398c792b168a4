"""The coordinator of ranks that are threads: they wait in it, and the last member hands all calls to the backend."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from math import inf
from typing import Any

from ..collectives.call import Call
from ..collectives.coordinator import Coordinator
from ..collectives.fault import Fault, State, Stopped
from ..collectives.pending import Identity, PendingCall
from ..collectives.pending_work import Promises, pending_work
from ..collectives.recorder import CallRecorder, is_asynchronous
from ..learner_code import learner_line
from ..torch_hooks import private


class ThreadCoordinator(Coordinator):
    """The coordinator of one run, which every rank's thread uses."""

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.spans = [(inf, inf)] * world_size  # when each rank entered and left the function
        self._recorders = [CallRecorder(rank) for rank in range(world_size)]
        self._threads: dict[int, int] = {}
        self._gates: dict[PendingCall, threading.Condition] = {}  # where ranks wait
        self._promises: dict[int, Promises[PendingCall]] = defaultdict(Promises)  # by rank

    @property
    def log(self) -> list[list[Call]]:
        """Return each rank's calls, by rank."""
        return [recorder.calls for recorder in self._recorders]

    # -- for ranks -----------------------------------------------------------------------------------------------

    def collective(
        self, rank: int, operator: Any, arguments: dict[str, Any], execute: Callable[[], Any], identity: Identity
    ) -> Any:
        """Run `rank`'s part in a `c10d` operator; see `interposer.Interposer`."""
        call = self._recorders[rank].call(operator, arguments)
        with self.changed:
            pending = self._matching.pending(rank, call, arguments.get("tag", 0))
            if is_asynchronous(call, arguments):
                result, promise = pending_work(pending, rank, call, operator, arguments, identity)
                self._promises[rank].add(promise, pending)
                self._join(rank, pending, call, execute)
                return result
            result = self._call_and_wait(rank, pending, call, execute)
        if result is not None and call.op != "recv":  # the caller waits for a recv's Work, which is possible once
            private.work_of(result).wait()  # the caller would wait next; waiting here measures the end
        call.times.done = time.perf_counter()
        return result

    def new_group(self, rank: int, group_name: str, ranks: list[int]) -> None:
        """Wait until every member creates the group: gloo's own wait for a missing member could not be stopped."""
        call = Call(op="new_group", group_name=group_name, ranks=tuple(ranks), source_line=learner_line())
        with self.changed:
            self.log[rank].append(call)
            self._call_and_wait(rank, self._matching.pending(rank, call, tag=0), call, lambda: None)
        call.times.done = time.perf_counter()

    def entered(self, rank: int) -> None:
        """Record that `rank` is about to run the learner's function, on this thread."""
        self._threads[rank] = threading.get_ident()
        self.spans[rank] = (time.perf_counter(), inf)

    def waiting(self, rank: int, waited: Any) -> None:
        """Wait until the result behind `waited` has arrived; see `interposer.Interposer`."""
        for promise, pending in self._promises[rank].of(waited):
            with self.changed:
                pending.calls[rank].times.wait_begins()
                self.wait(rank, pending)
            promise.future.wait()

    def not_in_group(self, rank: int, op: str) -> None:
        """Fail the run, and wait for its end."""
        call = Call(op=op, group_name="", ranks=(), source_line=learner_line())
        with self.changed:
            self.outside(rank, call)

    def left(self, rank: int, state: State, fault: Fault | None = None) -> None:
        self.spans[rank] = (self.spans[rank][0], time.perf_counter())
        super().left(rank, state, fault)

    def stop(self) -> None:
        """Stop every rank that waits or makes a call from now on."""
        with self.changed:
            super().stop()
            for gate in self._gates.values():
                gate.notify_all()

    @property
    def delivering(self) -> bool:
        """Return whether a result is being delivered to a rank, which may have left without waiting for it."""
        return any(call.times.delivering for calls in self.log for call in calls)

    # -- waiting -------------------------------------------------------------------------------------------------

    def _call_and_wait(self, rank: int, pending: PendingCall, call: Call, execute: Callable[[], Any]) -> Any:
        """Add the call, wait until it proceeds, and return the operator's result."""
        call.times.waited_from = call.times.issued
        self._join(rank, pending, call, execute)
        self.wait(rank, pending)
        if rank in pending.errors:
            raise pending.errors[rank]
        return pending.results.pop(rank)

    def _join(self, rank: int, pending: PendingCall, call: Call, execute: Callable[[], Any]) -> None:
        if self.stopping:
            raise Stopped
        super()._join(rank, pending, call, execute)
        if pending.broken:
            self.wait(rank, pending)

    def wait(self, rank: int, pending: PendingCall) -> None:
        """Wait until every member of `pending` has called.

        Raises:
            Stopped: the run is over.
        """
        if self._threads[rank] == threading.get_ident():  # a callback's wait does not block its rank
            super().wait(rank, pending)
        while pending.open and not self.stopping:
            self._gates.setdefault(pending, threading.Condition(self._lock)).wait()
        if self.stopping:
            raise Stopped

    def _release(self, pending: PendingCall) -> None:
        super()._release(pending)
        if not pending.open and (gate := self._gates.pop(pending, None)):
            gate.notify_all()
