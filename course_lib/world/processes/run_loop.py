"""The run loop: the kernel's loop during a run on processes, on one thread.

It waits for the next event: a rank's message, its output, its death, the time limit or an interrupt. It lets matching
calls proceed, and stops the ranks when the run cannot go on.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from ..collectives.coordinator import SETTLE, Coordinator
from ..collectives.fault import Fault, RankReport, State
from ..collectives.pending import PendingCall
from ..learner_code import SourceLine, source_line_in_dump
from .messages import (
    WRITE_STACK,
    Blocked,
    CallArrived,
    Finished,
    FromRank,
    Job,
    Locate,
    Location,
    OutsideGroup,
    Proceed,
    Refused,
    Started,
    Stop,
    ToRank,
)
from .output import Output
from .worker_handle import WorkerDied, WorkerHandle

STARTING = 60.0
"""Extra seconds in which ranks find each other and import modules. The run's own time starts afterwards."""

LOCATE = 0.2
"""Seconds in which ranks must report their line; the same again after a signal."""

GRACE = 0.5
"""Seconds in which ranks must then stop, before their processes are killed."""

HANDOVER = 60.0
"""Extra seconds for a rank that is still sending its result."""

DEATH = 5.0
"""Seconds in which a killed process disappears, even on a busy machine."""

POLL = 0.05
"""Seconds between two looks at the clock, because some interrupts do not end a wait."""


class RunLoop:
    """One run.

    Attributes:
        coordinator: compares the calls of ranks.
        left: each rank's final message.
        output: what ranks print.
        reports: what each rank was doing at a fault; empty if there was none.
        replaced: the ranks of `spent` that get a new process on the same machine; set by `close`.
    """

    def __init__(self, processes: Sequence[WorkerHandle], number: int, interrupts: list[Any]) -> None:
        self.coordinator = Coordinator(len(processes))
        self.left: dict[int, Finished] = {}
        self.output = Output(len(processes))
        self.reports: list[RankReport] = []
        self.replaced: list[int] = []
        self._processes = processes
        self._number = number
        self._interrupts = interrupts
        self._calls: dict[tuple[int, int], PendingCall] = {}  # by rank and index of the call
        self._dumps = [""] * len(processes)
        self._located: dict[int, SourceLine | None] = {}
        self._waited_for = set(range(len(processes)))
        self._timeout = self._deadline = inf
        self._selector = selectors.DefaultSelector()
        for rank, process in enumerate(processes):
            process.read(process.stack)  # an answer too late for the last run
            for fd, handle in (
                (process.wire.fileno(), self._message),
                (process.output, self._printed),
                (process.stack, self._stack),
                (process.status, self._died),
            ):
                self._selector.register(fd, selectors.EVENT_READ, (handle, rank))

    def run(self, jobs: Sequence[Job], timeout: float) -> None:
        """Send every rank its job, and wait until all have left or the run has failed."""
        self._timeout, self._deadline = timeout, time.monotonic() + timeout + STARTING
        for rank, job in enumerate(jobs):
            self._send(rank, job)
        while not self.coordinator.over:
            if self._interrupts:
                self._interrupts.clear()
                self.coordinator.fail("interrupted")
            elif time.monotonic() > self._deadline:
                self._read_rest()  # the kernel itself may have been held up
                if time.monotonic() > self._deadline and not self.coordinator.over:
                    self.coordinator.fail("timeout")
            else:
                self._read(POLL)

    def end(self) -> None:
        """Find out where ranks are after a fault, and stop them. Kill the ranks that do not stop."""
        fault = self.coordinator.fault
        assert fault is not None
        for rank in self._active:
            self._died(rank)  # if it died, its peers' errors about broken connections are not the cause
        if not fault.from_outside:
            self._read_while(lambda: self.coordinator.busy(State.RUNNING), SETTLE)
        lost = [rank for rank, state in enumerate(self.coordinator.states) if state is State.RUNNING]
        self._locate(lost)
        reports = self.coordinator.reports(self._located.get)
        self.coordinator.stopping = True
        for rank in self._active:
            self._send(rank, Stop())
        self._read_while(lambda: bool(self._active), GRACE)
        self._read_while(lambda: any(self._processes[rank].has_partial_message for rank in self._active), HANDOVER)
        for rank in self._active:
            self._processes[rank].kill()
        self._read_while(lambda: bool(self._active), DEATH)
        self.reports = [
            report.ended(self.left[report.rank].raised if report.rank in self.left else None) for report in reports
        ]

    def _locate(self, ranks: Sequence[int]) -> None:
        """Ask `ranks` for their lines: by a message first, and by a signal if no thread answers."""

        def silent() -> list[int]:
            return [rank for rank in ranks if rank not in self._located]

        for rank in ranks:
            self._send(rank, Locate())
        self._read_while(lambda: bool(silent()), LOCATE)
        for rank in silent():
            self._processes[rank].signal(WRITE_STACK)
        self._read_while(lambda: bool(silent()), LOCATE)

    def close(self) -> None:
        """Read the ranks' last output. All ranks have left or are dead."""
        for rank in range(len(self._processes)):
            self._printed(rank)
        self.output.close()
        self._selector.close()
        self.replaced = [rank for rank in self.spent if not self._processes[rank].machine_lost]

    @property
    def spent(self) -> list[int]:
        """Return the ranks whose process is dead or unusable."""
        return [
            rank
            for rank, state in enumerate(self.coordinator.states)
            if state is State.DIED or (rank in self.left and self.left[rank].spent)
        ]

    @property
    def _active(self) -> list[int]:
        """Return the ranks that are alive and have not left."""
        return [
            rank
            for rank, state in enumerate(self.coordinator.states)
            if rank not in self.left and state is not State.DIED
        ]

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
            handle, rank = key.data
            handle(rank)
        self.output.show_when_due()
        return bool(ready)

    def _message(self, rank: int) -> None:
        messages = self._processes[rank].receive()
        if messages is None:
            self._unregister(self._processes[rank].wire.fileno())
            return
        for number, message in messages:
            if number == self._number:
                self._handle(rank, message)

    def _handle(self, rank: int, message: FromRank) -> None:
        if isinstance(message, Finished):
            self._handle_finished(rank, message)
        elif isinstance(message, Started):
            self._waited_for -= {rank}
            if not self._waited_for:
                self._deadline = time.monotonic() + self._timeout
        elif self.coordinator.stopping:
            return
        elif isinstance(message, CallArrived):
            self._handle_call(rank, message)
        elif isinstance(message, Blocked):
            self.coordinator.wait(rank, self._calls[rank, message.index])
        elif isinstance(message, Refused):
            self.coordinator.refused(self._calls[rank, message.index], (rank,), message.reason)
        elif isinstance(message, OutsideGroup):
            self.coordinator.outside(rank, message.call)
        elif isinstance(message, Location):
            self._located.setdefault(rank, message.source_line)  # keep an earlier answer to a signal

    def _handle_call(self, rank: int, arrived: CallArrived) -> None:
        def go() -> None:
            if arrived.gated:
                self._send(rank, Proceed(call=arrived.index))

        pending = self.coordinator.arrive(rank, arrived.call, arrived.tag, go)
        self._calls[rank, arrived.index] = pending
        if arrived.waits or pending.broken:
            self.coordinator.wait(rank, pending)

    def _handle_finished(self, rank: int, left: Finished) -> None:
        self.left[rank] = left
        if left.raised is None and not left.stopped:
            self.coordinator.left(rank, State.RETURNED)
        elif self.coordinator.stopping:
            self.coordinator.left(rank, State.RAISED)
        else:
            fault = Fault(kind="exited" if left.exited else "raised", ranks=(rank,))
            self.coordinator.left(rank, State.RAISED, fault)

    def _printed(self, rank: int) -> None:
        process = self._processes[rank]
        while text := process.read(process.output):
            self.output.add(rank, text)

    def _stack(self, rank: int) -> None:
        dump = self._processes[rank].read(self._processes[rank].stack)
        if dump:  # possibly incomplete
            self._dumps[rank] += dump.decode(errors="replace")
            source_line = source_line_in_dump(self._dumps[rank])
            if source_line is not None:
                self._located.setdefault(rank, source_line)
        elif self._processes[rank].dead():
            self._unregister(self._processes[rank].stack)

    def _died(self, rank: int) -> None:
        process = self._processes[rank]
        if not process.dead():
            return
        self._printed(rank)
        wire = process.wire.fileno()
        while wire in self._selector.get_map():
            self._message(rank)  # messages sent before its death
        for fd in (process.status, process.output):
            self._unregister(fd)
        self._stack(rank)
        self.coordinator.died(rank, process.how_it_died)

    def _unregister(self, fd: int) -> None:
        """Stop watching `fd`."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _send(self, rank: int, message: ToRank) -> None:
        with suppress(WorkerDied):  # its status will report it
            self._processes[rank].send(message)
