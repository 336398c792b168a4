"""One run on processes: hears what every rank tells, lets calls that fit go on, and ends what cannot.

The kernel's thread is the only one here. It waits for whatever comes first: a rank's message, its output, its death,
the time limit, an interrupt.
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
    TELL_STACK,
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
"""Seconds that ranks have to find each other, and to import what the function needs; its own time counts from then."""

LOCATE = 0.2
"""Seconds that ranks have to tell where they are; and again, when they are asked by a signal."""

GRACE = 0.5
"""Seconds in which ranks must stop after that, before their processes are ended."""

HANDOVER = 60.0
"""Seconds after that for who is in the midst of telling something, such as a large result."""

DEATH = 5.0
"""Seconds in which a process that was killed is gone, however busy the machine is."""

POLL = 0.05
"""Seconds between two looks at the clock: not every interrupt ends a wait."""


class RunLoop:
    """One run.

    Attributes:
        rendezvous: where the calls of ranks meet.
        left: what each rank told when it was done.
        output: what ranks print.
        reports: what each rank was doing at a fault; empty where there was none.
        replaced: of `spent`, the ranks that get a new process on the same machine; known when it is closed.
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
            process.read(process.stack)  # an answer that came too late for the last run
            for fd, hear in (
                (process.wire.fileno(), self._message),
                (process.output, self._printed),
                (process.stack, self._stack),
                (process.status, self._died),
            ):
                self._selector.register(fd, selectors.EVENT_READ, (hear, rank))

    def run(self, jobs: Sequence[Job], timeout: float) -> None:
        """Give every rank its job, and wait until all have left or the run has failed."""
        self._timeout, self._deadline = timeout, time.monotonic() + timeout + STARTING
        for rank, job in enumerate(jobs):
            self._tell(rank, job)
        while not self.coordinator.over:
            if self._interrupts:
                self._interrupts.clear()
                self.coordinator.fail("interrupted")
            elif time.monotonic() > self._deadline:
                self._hear_rest()  # the kernel itself may have been held up
                if time.monotonic() > self._deadline and not self.coordinator.over:
                    self.coordinator.fail("timeout")
            else:
                self._hear(POLL)

    def end(self) -> None:
        """After a fault: find out where ranks are, and stop them. Who does not stop is killed."""
        fault = self.coordinator.fault
        assert fault is not None
        for rank in self._there:
            self._died(rank)  # has it? Then what others said of a broken connection is not the cause
        if not fault.from_outside:
            self._hear_while(lambda: self.coordinator.busy(State.RUNNING), SETTLE)
        lost = [rank for rank, state in enumerate(self.coordinator.states) if state is State.RUNNING]
        self._locate(lost)
        reports = self.coordinator.reports(self._located.get)
        self.coordinator.stopping = True
        for rank in self._there:
            self._tell(rank, Stop())
        self._hear_while(lambda: bool(self._there), GRACE)
        self._hear_while(lambda: any(self._processes[rank].in_midst_of_message for rank in self._there), HANDOVER)
        for rank in self._there:
            self._processes[rank].kill()
        self._hear_while(lambda: bool(self._there), DEATH)
        self.reports = [
            report.ended(self.left[report.rank].raised if report.rank in self.left else None) for report in reports
        ]

    def _locate(self, ranks: Sequence[int]) -> None:
        """Ask `ranks` where they are: first a thread of theirs; by a signal where that cannot answer."""

        def silent() -> list[int]:
            return [rank for rank in ranks if rank not in self._located]

        for rank in ranks:
            self._tell(rank, Locate())
        self._hear_while(lambda: bool(silent()), LOCATE)
        for rank in silent():
            self._processes[rank].signal(TELL_STACK)
        self._hear_while(lambda: bool(silent()), LOCATE)

    def close(self) -> None:
        """Hear the last that ranks have printed. All have left or are dead."""
        for rank in range(len(self._processes)):
            self._printed(rank)
        self.output.close()
        self._selector.close()
        self.replaced = [rank for rank in self.spent if not self._processes[rank].machine_lost]

    @property
    def spent(self) -> list[int]:
        """Ranks whose process is dead, or can do no more."""
        return [
            rank
            for rank, state in enumerate(self.coordinator.states)
            if state is State.DIED or (rank in self.left and self.left[rank].spent)
        ]

    @property
    def _there(self) -> list[int]:
        """Ranks that have not left, and live."""
        return [
            rank
            for rank, state in enumerate(self.coordinator.states)
            if rank not in self.left and state is not State.DIED
        ]

    # -- hearing ---------------------------------------------------------------------------------------------------

    def _hear_while(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while condition() and (left := deadline - time.monotonic()) > 0:
            self._hear(left)

    def _hear_rest(self) -> None:
        """Hear what has come by now, for a moment: a rank that prints may never be done."""
        deadline = time.monotonic() + SETTLE
        while self._hear(0) and time.monotonic() < deadline:
            pass

    def _hear(self, seconds: float) -> bool:
        """Hear what comes first; whether anything came."""
        heard = self._selector.select(seconds)
        for key, _ in heard:
            hear, rank = key.data
            hear(rank)
        self.output.show_when_due()
        return bool(heard)

    def _message(self, rank: int) -> None:
        messages = self._processes[rank].receive()
        if messages is None:
            self._deaf_to(self._processes[rank].wire.fileno())
            return
        for number, message in messages:
            if number == self._number:
                self._take(rank, message)

    def _take(self, rank: int, message: FromRank) -> None:
        if isinstance(message, Finished):
            self._take_left(rank, message)
        elif isinstance(message, Started):
            self._waited_for -= {rank}
            if not self._waited_for:
                self._deadline = time.monotonic() + self._timeout
        elif self.coordinator.stopping:
            return
        elif isinstance(message, CallArrived):
            self._take_call(rank, message)
        elif isinstance(message, Blocked):
            self.coordinator.wait(rank, self._calls[rank, message.index])
        elif isinstance(message, Refused):
            self.coordinator.refused(self._calls[rank, message.index], (rank,), message.told)
        elif isinstance(message, OutsideGroup):
            self.coordinator.outside(rank, message.call)
        elif isinstance(message, Location):
            self._located.setdefault(rank, message.source_line)  # it may have gone on since a signal asked it

    def _take_call(self, rank: int, came: CallArrived) -> None:
        def go() -> None:
            if came.gated:
                self._tell(rank, Proceed(call=came.index))

        pending = self.coordinator.arrive(rank, came.call, came.tag, go)
        self._calls[rank, came.index] = pending
        if came.waits or pending.broken:
            self.coordinator.wait(rank, pending)

    def _take_left(self, rank: int, left: Finished) -> None:
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
        if dump:  # a part of it, maybe
            self._dumps[rank] += dump.decode(errors="replace")
            source_line = source_line_in_dump(self._dumps[rank])
            if source_line is not None:
                self._located.setdefault(rank, source_line)
        elif self._processes[rank].dead():
            self._deaf_to(self._processes[rank].stack)

    def _died(self, rank: int) -> None:
        process = self._processes[rank]
        if not process.dead():
            return
        self._printed(rank)
        wire = process.wire.fileno()
        while wire in self._selector.get_map():
            self._message(rank)  # what it told before
        for fd in (process.status, process.output):
            self._deaf_to(fd)
        self._stack(rank)
        self.coordinator.died(rank, process.how_it_died)

    def _deaf_to(self, fd: int) -> None:
        """Nothing more comes from there."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _tell(self, rank: int, message: ToRank) -> None:
        with suppress(WorkerDied):  # its status says so, soon
            self._processes[rank].send(message)
