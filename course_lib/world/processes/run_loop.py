"""The run loop: the kernel's loop during a run on processes, on one thread.

It waits for the next event: a rank's message, its output, its death, the time limit or an interrupt. It lets matching
calls proceed, and stops the ranks when the run cannot go on.
"""

import selectors
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from ...meter import SourceLine
from ..collectives.call import Call
from ..collectives.coordinator import HELD, LOOK, SETTLE, Coordinator
from ..collectives.fault import RankReport, State
from ..collectives.matching import PendingCall
from ..learner_code import source_line_in_dump
from ..rank_threads.printing import Lines
from .output import Output
from .protocol import Finished, Job
from .worker_handle import WorkerHandle

STARTING = 60.0
"""Extra seconds in which ranks find each other and import modules. The run's own time starts afterwards."""

GRACE = 1.5  # seconds in which ranks must stop after a fault, even on a busy machine, before their processes are killed
DEATH = 5.0  # seconds in which a killed process disappears, even on a busy machine
POLL = 0.05  # seconds between two looks at the clock, because some interrupts do not end a wait


class RunLoop:
    """One run.

    Attributes:
        left: each rank's final message.
        reports: what each rank was doing at a fault; empty if there was none.
        replaced: the ranks of `spent` that get a new process on the same machine; set by `close`.
    """

    def __init__(self, processes: Sequence[WorkerHandle], number: int, interrupts: list[Any], lines: Lines) -> None:
        self.coordinator = Coordinator(len(processes))
        self.left: dict[int, Finished] = {}
        self.output = Output(len(processes), lines)
        self.reports: list[RankReport] = []
        self.replaced: list[int] = []
        self._processes = processes
        self._number = number
        self._interrupts = interrupts
        self._calls: dict[tuple[int, int], PendingCall] = {}  # by rank and index of the call
        self._located: dict[int, SourceLine | None] = dict.fromkeys(range(len(processes)))
        self._dead: set[int] = set()
        self._signalled: set[int] = set()  # such a rank may finish, and die afterwards
        self._waited_for = set(range(len(processes)))
        self._timeout = self._deadline = inf
        self._next_look = time.monotonic() + LOOK
        self._asked: set[int] = set()  # the ranks that have not answered the last look
        self._selector = selectors.DefaultSelector()
        ranks_of: dict[Any, list[int]] = defaultdict(list)
        for rank, process in enumerate(processes):
            self._selector.register(process.wire, selectors.EVENT_READ, partial(self._message, rank))
            self._selector.register(process.output, selectors.EVENT_READ, partial(self._printed, rank))
            ranks_of[process.process.sentinel].append(rank)
        for sentinel, ranks in ranks_of.items():
            self._selector.register(sentinel, selectors.EVENT_READ, partial(self._check_deaths, sentinel, ranks))

    def run(self, jobs: Sequence[Job], timeout: float) -> None:
        """Send every rank its job, and wait until all have left or the run has failed."""
        self._timeout, self._deadline = timeout, time.monotonic() + timeout + STARTING
        for rank, job in enumerate(jobs):
            handle = self._processes[rank]
            handle.send("run", replace(job, started=job.started + handle.process.clock_ahead))
        while not self.coordinator.over:
            if self._interrupts:
                self._interrupts.clear()
                self.coordinator.fail("interrupted")
            elif time.monotonic() > self._deadline:
                self._read_rest()  # the kernel itself may have been held up
                if time.monotonic() > self._deadline and not self.coordinator.over:
                    self.coordinator.fail("timeout")
            else:
                self._look()
                self._read(POLL)

    def _look(self) -> None:
        """Ask the ranks that run whether they wait in C++. A rank that does not answer is not asked again."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK
        for rank, state in enumerate(self.coordinator.states):
            if state is State.RUNNING and rank not in self._asked:
                self._asked.add(rank)
                self._processes[rank].send("look", HELD)

    def end(self) -> None:
        """Find out where ranks are after a fault, and stop them. Kill the ranks that do not stop."""
        fault = self.coordinator.fault
        assert fault is not None
        for rank in self._active:
            self._died(rank)  # if it died, its peers' errors about broken connections are not the cause
        if not fault.from_outside:
            self._read_while(lambda: self.coordinator.busy(State.RUNNING), SETTLE)
        reports = self.coordinator.reports(self._located)
        self.coordinator.stopping = True
        for rank in self._active:
            self._processes[rank].send("stop")
        self._read_while(lambda: bool(self._active), GRACE)
        self._read_rest()  # a large result may have held up the others
        for number, seconds in ((signal.SIGABRT, GRACE), (signal.SIGKILL, DEATH)):  # the first writes the rank's stack
            for rank in self._active:
                self._signalled.add(rank)
                self._processes[rank].process.kill(number)
            self._read_while(lambda: bool(self._active), seconds)
        self.reports = [self._completed(report, self.left.get(report.rank)) for report in reports]

    def _completed(self, report: RankReport, left: Finished | None) -> RankReport:
        """Return the report with the line that the rank was at, if it was running, and with what it raised."""
        if report.state == State.RUNNING.value:
            report = replace(report, source_line=self._located[report.rank])
        if left is None:
            return report
        if report.state == State.RETURNED.value:
            report = replace(report, source_line=left.exited_at)
        return replace(report, raised_in_thread=left.raised_in_thread).ended(left.raised)

    def close(self) -> None:
        """Read the ranks' last output. All ranks have left or are dead."""
        self._read_while(lambda: not self.output.ended >= self.left.keys(), DEATH)
        self.release()
        self.replaced = [rank for rank in self.spent if not self._processes[rank].process.machine_lost]

    def release(self) -> None:
        """Show the output that has arrived, and close the selector."""
        self.output.close()
        self._selector.close()

    @property
    def calls(self) -> list[list[Call]]:
        """Return each rank's calls: from its final message, or as they arrived if its process died."""
        arrived: list[list[Call]] = [[] for _ in self._processes]
        for (rank, _), pending in sorted(self._calls.items(), key=lambda item: item[0]):
            arrived[rank].append(pending.calls[rank])
        return [self.left[rank].calls if rank in self.left else calls for rank, calls in enumerate(arrived)]

    @property
    def spent(self) -> list[int]:
        """Return the ranks whose process is dead or unusable."""
        return sorted(self._dead | self._signalled | {rank for rank, left in self.left.items() if left.spent})

    @property
    def _active(self) -> list[int]:
        return [rank for rank in range(len(self._processes)) if rank not in self._dead | self.left.keys()]

    # -- messages of ranks -------------------------------------------------------------------------------------------

    def started(self, rank: int) -> None:
        self._waited_for -= {rank}
        if not self._waited_for:
            self._deadline = time.monotonic() + self._timeout

    def called(self, rank: int, index: int, call: Call, waits: bool, gated: bool) -> None:
        """Compare call number `index` of `rank` with those of its peers.

        If it `waits`, the rank does nothing until the call may proceed. If `gated`, the backend does not see it before.
        """

        def go() -> None:
            if gated:
                self._processes[rank].send("proceed", index)

        pending = self.coordinator.arrive(rank, call, go)
        self._calls[rank, index] = pending
        if waits or pending.broken:
            self.coordinator.wait(rank, pending)

    def waits(self, rank: int, index: int) -> None:
        self.coordinator.wait(rank, self._calls[rank, index])

    def looked(self, rank: int, index: int | None) -> None:
        self._asked.discard(rank)
        if index is not None:
            self.waits(rank, index)

    def refused(self, rank: int, index: int, reason: str) -> None:
        self.coordinator.refused(self._calls[rank, index], (rank,), reason)

    def outside(self, rank: int, call: Call) -> None:
        self.coordinator.called_outside(rank, call)

    def located(self, rank: int, line: SourceLine | None) -> None:
        self._located[rank] = line

    def finished(self, rank: int, left: Finished) -> None:
        self.left[rank] = replace(left, calls=[self._matched(rank, *one) for one in enumerate(left.calls)])
        self.coordinator.left(rank, left.how)

    def _matched(self, rank: int, index: int, call: Call) -> Call:
        """Return the call with its match: the rank does not know which calls belong together."""
        pending = self._calls.get((rank, index))
        return call if pending is None else call.with_match(pending.number)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_while(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while condition() and (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def _read_rest(self) -> None:
        """Read what has arrived, for at most a moment: a rank may print without end."""
        deadline = time.monotonic() + SETTLE
        while self._read(0) and time.monotonic() < deadline:
            pass

    def _read(self, seconds: float) -> bool:
        """Handle the next events. Return whether there were any."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            if key.fd in self._selector.get_map():
                key.data()
        self.output.show_when_due()
        return bool(ready)

    def _message(self, rank: int) -> None:
        message = self._processes[rank].receive()
        if message is None:
            self._unregister(self._processes[rank].wire)
            return
        number, event, arguments = message
        if number == self._number and (event in ("finished", "located") or not self.coordinator.stopping):
            getattr(self, event)(rank, *arguments)

    def _printed(self, rank: int) -> None:
        written = self._processes[rank].read_output()
        if written is None:
            self.output.ended.add(rank)
            self._unregister(self._processes[rank].output)
        else:
            self.output.add(rank, written)

    def _check_deaths(self, sentinel: Any, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._died(rank)
        if self._dead.issuperset(ranks):
            self._unregister(sentinel)

    def _died(self, rank: int) -> None:
        """Read all that `rank` has sent, if its process has ended."""
        handle = self._processes[rank]
        if rank in self._dead or not handle.dead():
            return
        self._dead.add(rank)
        deadline = time.monotonic() + GRACE  # a process that it has started may print without end
        for connection, read in ((handle.wire, self._message), (handle.output, self._printed)):
            while connection in self._selector.get_map() and connection.poll() and time.monotonic() < deadline:
                read(rank)
            self._unregister(connection)
        if self._located[rank] is None:
            self._located[rank] = source_line_in_dump(handle.process.stack())
        self.output.ended.add(rank)
        self.coordinator.died(rank, handle.process.how_it_died)

    def _unregister(self, source: Any) -> None:
        if source in self._selector.get_map():
            self._selector.unregister(source)
