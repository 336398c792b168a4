"""The coordinator of ranks that are threads: they wait in it, and the last member hands all calls to the backend."""

import threading
import time
from collections import defaultdict
from math import inf

from ..collectives.coordinator import Coordinator
from ..collectives.fault import Leaving, Stopped
from ..collectives.local_call import LocalCall
from ..collectives.matching import PendingCall


class ThreadCoordinator(Coordinator):
    """The coordinator of one run, which every rank's thread uses: see `collectives.rank.Peers`.

    Attributes:
        spans: when each rank entered and left the function.
    """

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.spans = [(inf, inf)] * world_size
        self._threads: dict[int, int] = {}
        self._gates: dict[PendingCall, threading.Condition] = {}  # where ranks wait
        self._waiting: defaultdict[PendingCall, list[LocalCall]] = defaultdict(list)  # calls that have not proceeded

    # -- for ranks -----------------------------------------------------------------------------------------------

    def called(self, local: LocalCall) -> None:
        with self.changed:
            if self.stopping:
                raise Stopped
            rank, call = local.call.rank, local.call
            local.ticket = pending = self._matching.pending(rank, call)
            local.progress.match = pending.number
            self._waiting[pending].append(local)
            self._join(rank, pending, call, local.start)
            if pending.broken:
                self.wait(rank, pending)
            elif local.waits and local.future is not None:  # in C++, for the future
                self.waits_in_cpp(rank, pending)

    def wait_for(self, local: LocalCall) -> None:
        with self.changed:
            self.wait(local.call.rank, local.ticket)

    def entered(self, rank: int) -> None:
        """Record that `rank` is about to run the learner's function, on this thread."""
        self._threads[rank] = threading.get_ident()
        self.spans[rank] = (time.perf_counter() - self.started, inf)

    def left(self, rank: int, how: Leaving) -> None:
        self.spans[rank] = (self.spans[rank][0], time.perf_counter() - self.started)
        super().left(rank, how)

    # -- for the supervisor --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop every rank that waits or makes a call from now on."""
        with self.changed:
            self.stopping = True
            for waiting in self._waiting.values():
                for local in waiting:
                    local.call_off()
            for gate in self._gates.values():
                gate.notify_all()

    def waits_in_cpp(self, rank: int, pending: PendingCall) -> None:
        """Record that `rank` waits in C++."""
        super().wait(rank, pending)

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(self, rank: int, pending: PendingCall) -> None:
        """Wait until every member of `pending` has called; raise `Stopped` if the run ends before."""
        if self._threads[rank] == threading.get_ident():  # a callback's wait does not block its rank
            super().wait(rank, pending)
        while pending.open and not self.stopping:
            self._gates.setdefault(pending, threading.Condition(self._lock)).wait()
        if pending.open:  # else the call is complete: peers go on, and rely on this rank
            raise Stopped

    def _release(self, pending: PendingCall) -> None:
        super()._release(pending)
        if pending.open:
            return
        started = self._waiting.pop(pending)
        errors = {local.call.rank: local.error for local in started if local.error is not None}
        first = next(iter(errors.values()), None)
        promised = any(local.future for local in started)
        while started:  # a call holds its result: this thread must not keep it longer than the rank does
            started.pop().deliver(first)
        if first is not None and promised:  # see InterposedRank._promised
            self.refused(pending, tuple(errors), str(first))
        if gate := self._gates.pop(pending, None):
            gate.notify_all()
