"""`ProcessRank`: the interposer of a rank's process during one run.

The rank first reports each call to the kernel (`CallArrived`), which compares it with the other ranks' calls. The call
enters the backend once every member has called (`Proceed`). So a call that does not match never reaches gloo, and no
rank hangs there: see `collectives.coordinator`. NCCL calls enter at once, because the GPU computes ahead. The kernel
compares these too, and aborts those that never end.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import torch

from ...meter import MemoryMeter, tensors_in, unwatched
from ..collectives.call import Call
from ..collectives.fault import Stopped
from ..collectives.pending import PendingCall
from ..collectives.pending_work import Promises, pending_work
from ..collectives.recorder import CallRecorder, is_asynchronous
from ..learner_code import learner_line, source_line_of
from ..torch_hooks import private
from .protocol import (
    Blocked,
    CallArrived,
    FromRank,
    Job,
    Location,
    OutsideGroup,
    Proceed,
    Refused,
    Stop,
    ToRank,
)

STOP = signal.SIGUSR1
"""The signal to a rank's main thread: raise `Stopped` in the learner's function."""

STOP_EVERY = 0.02
"""Seconds between two signals to a rank that must stop."""


@dataclass(kw_only=True)
class OpenCall:
    """A call that the rank has made, and that may not enter the backend yet.

    Attributes:
        index: of the call, among the rank's.
        pending: of this rank only, for an asynchronous call, which the listener lets proceed.
        may_go: set when the call may proceed, or the run is over.
    """

    index: int
    pending: PendingCall | None = None
    may_go: threading.Event = field(default_factory=threading.Event)


class ProcessRank:
    """The interposer of this process (see `interposer.Interposer`), and the handler of the kernel's messages.

    Attributes:
        job: the run.
        meter: set if memory is measured.
        stopping: the run is over; the rank must stop.
        stoppable: the main thread is in the learner's code, where an exception is safe.
        span: when it entered and left that code.
        done: set when it has left that code for good.
    """

    generator: torch.Generator | None = None  # the process's own

    def __init__(self, job: Job, send: Callable[[FromRank], None]) -> None:
        self.job = job
        self.meter: MemoryMeter | None = None
        self.stopping = False
        self.stoppable = False
        self.span = (inf, inf)
        self.done = threading.Event()
        self._send = send
        self._recorder = CallRecorder(job.rank)
        self._lock = threading.Lock()
        self._open: dict[int, OpenCall] = {}
        self._promises: Promises[tuple[Call, OpenCall]] = Promises()

    @property
    def calls(self) -> list[Call]:
        """Return the rank's calls."""
        return self._recorder.calls

    # -- messages from the kernel ----------------------------------------------------------------------------------

    def handle(self, message: ToRank) -> None:
        if isinstance(message, Proceed):
            self._go(message.call)
        elif isinstance(message, Stop):
            self._send(Location(source_line=source_line_of(threading.main_thread())))
            self._stop()

    def _go(self, index: int) -> None:
        with self._lock:
            waiting = self._open.pop(index, None)
        if waiting is None:
            return
        if waiting.pending is not None:
            waiting.pending.take_place()
            for error in waiting.pending.errors.values():
                self._send(Refused(index=index, reason=str(error)))
        waiting.may_go.set()

    def _stop(self) -> None:
        with self._lock:
            self.stopping = True
            waiting = list(self._open.values())
        for one in waiting:
            if one.pending is not None:
                one.pending.call_off()
            one.may_go.set()
        threading.Thread(target=self._keep_stopping, daemon=True).start()

    def _keep_stopping(self) -> None:
        if self.job.nccl:
            with contextlib.suppress(RuntimeError, ValueError):  # the rank has just ended the groups itself
                private.abort_groups()
        main = threading.main_thread().ident
        assert main is not None
        while not self.done.wait(STOP_EVERY):
            signal.pthread_kill(main, STOP)

    # -- stopping --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def in_learners_code(self) -> Iterator[None]:
        """Run the learner's function inside the block, where it may be stopped."""
        entered = time.perf_counter()
        self.stoppable = True
        try:
            yield
        finally:
            self.stoppable = False
            self.span = (entered, time.perf_counter())

    @contextlib.contextmanager
    def _shielded(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # autograd's, which gets no signal
            yield
            return
        before, self.stoppable = self.stoppable, False
        try:
            yield
        finally:
            self.stoppable = before

    def _report(self, call: Call, tag: int, *, waits: bool, pending: PendingCall | None = None) -> OpenCall:
        """Report `call` to the kernel."""
        one = OpenCall(index=len(self.calls) - 1, pending=pending)
        with self._lock:
            if self.stopping:
                raise Stopped
            self._open[one.index] = one
        self._send(CallArrived(index=one.index, call=call, tag=tag, waits=waits, gated=True))
        return one

    def _wait(self, one: OpenCall) -> None:
        one.may_go.wait()
        if self.stopping:
            raise Stopped

    # -- the interposer --------------------------------------------------------------------------------------------

    def collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[..., Any]) -> Any:
        with self._shielded():
            if self.meter is None:
                return self._collective(operator, arguments, partial(execute, *arguments.values()))
            loan = self.meter.lend(arguments.values())
            result = self._collective(operator, arguments, unwatched(partial(execute, *loan.arguments)))
            self.meter.lent(loan, self.calls[-1].times)
            return result

    def _collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[[], Any]) -> Any:
        on_gpu = next(tensors_in(arguments)).is_cuda
        call = self._recorder.call(operator, arguments, ("cpu",) if self.job.device is None else ("cpu", "cuda"))
        tag = arguments.get("tag", 0)
        if self.job.nccl and on_gpu:
            return self._at_once(call, tag, execute)
        asynchronous = is_asynchronous(call, arguments)
        if asynchronous and not on_gpu:
            pending = PendingCall(members=frozenset({self.job.rank}), calls={self.job.rank: call})
            pending.execute[self.job.rank] = execute
            result, promise = pending_work(pending, self.job.rank, call, operator, arguments, contextlib.nullcontext)
            self._promises.add(promise, (call, self._report(call, tag, waits=False, pending=pending)))
            return result
        # On a GPU, a rank waits for its peers even in an asynchronous call: gloo's own Work knows the GPU's streams,
        # and ours would not.
        call.times.waited_from = call.times.issued
        self._wait(self._report(call, tag, waits=True))
        call.times.matched = time.perf_counter()
        result = execute()
        if result is not None and not asynchronous and call.op != "recv":  # a recv's Work can be waited for once
            private.work_of(result).wait()  # the caller would wait next; waiting here measures the end
        call.times.done = time.perf_counter()
        return result

    def _at_once(self, call: Call, tag: int, execute: Callable[[], Any]) -> Any:
        """Hand the call to NCCL at once; its work ends when the GPU reaches it."""
        self._send(CallArrived(index=len(self.calls) - 1, call=call, tag=tag, waits=False, gated=False))
        call.times.matched = time.perf_counter()
        result = execute()
        call.times.done = time.perf_counter()
        return result

    def new_group(self, group_name: str, ranks: list[int]) -> None:
        with self._shielded():
            call = Call(op="new_group", group_name=group_name, ranks=tuple(ranks), source_line=learner_line())
            self.calls.append(call)
            call.times.waited_from = call.times.issued
            self._wait(self._report(call, 0, waits=True))
            call.times.matched = call.times.done = time.perf_counter()

    def not_in_group(self, op: str) -> None:
        with self._shielded():
            self._send(OutsideGroup(call=Call(op=op, group_name="", ranks=(), source_line=learner_line())))
            while not self.stopping:
                time.sleep(STOP_EVERY)
            raise Stopped

    def waiting(self, waited: Any) -> None:
        with self._shielded():
            for promise, (call, one) in self._promises.of(waited):
                call.times.wait_begins()
                if not one.may_go.is_set():
                    self._send(Blocked(index=one.index))
                self._wait(one)
                promise.future.wait()
