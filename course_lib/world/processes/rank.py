"""`ProcessRank`: the interposer of a rank's process during one run.

The rank first reports each call to the kernel, which compares it with the other ranks' calls. The call enters the
backend once every member has called. So a call that does not match never reaches gloo, and no rank hangs there: see
`collectives.coordinator`. NCCL calls enter at once, because the GPU computes ahead. The kernel compares these too, and
aborts those that never end.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from math import inf
from typing import Any

import torch
import torch.distributed as dist

from ...meter import tensors_in
from ..collectives.call import Call
from ..collectives.fault import Stopped
from ..collectives.local_call import LocalCall
from ..collectives.rank import InterposedRank
from ..collectives.recorder import is_asynchronous
from ..learner_code import position_of
from ..torch_hooks import default_group, interposer, private
from .protocol import Job
from .threads import Threads

STOP = signal.SIGURG
"""The signal to a rank's main thread: raise `Stopped` in the learner's function. Programs have handlers for SIGUSR1."""
STOP_EVERY = 0.02  # seconds between two signals to a rank that must stop


class ProcessRank(InterposedRank):
    """The interposer of this process. It is its own `collectives.rank.Peers`: the peers are behind messages.

    Attributes:
        stopping: the run is over; the rank must stop.
        ready: the process could make itself like a new one. An earlier program may have prevented that, by `setrlimit`
            for example.
        stoppable: the main thread is in the learner's code, where an exception is safe.
        span: when it entered and left that code.
        done: set when it has left that code for good.
        threads: those that it has started.
    """

    def __init__(self, job: Job, send: Callable[..., None], groups: list[dist.ProcessGroup]) -> None:
        devices = ("cpu",) if job.place.device is None else ("cpu", "cuda")
        super().__init__(job.rank, job.world_size, self, job.started, threading.main_thread(), devices)
        self.groups = groups  # they outlive the run
        self.job = job
        self.stopping = self.ready = self.stoppable = False
        self.span = (inf, inf)
        self.done = threading.Event()
        self.threads = Threads(self.identity)
        self._send = send
        self._changed = threading.Condition()
        self._open: dict[int, LocalCall] = {}  # calls that may not enter the backend yet, by index

    # -- messages from the kernel ----------------------------------------------------------------------------------

    def proceed(self, index: int) -> None:
        """Let the call with this index enter the backend: every member has called.

        Calls of several threads enter in the order of these messages, which is the same on every rank of a group.
        """
        local = self._open.get(index)
        if local is None:
            return
        if local.future is not None or self.job.place.device is None:  # else on the rank's thread, with its GPU stream
            local.start()
        if local.future is not None and local.error is not None:
            self._send("refused", index, str(local.error))
        local.deliver(local.error)
        with self._changed:
            self._open.pop(index)
            self._changed.notify_all()

    def look(self, seconds: float) -> None:
        """Report a call for which the rank has waited in C++ for `seconds`, if it can make no other."""
        held = None if self.done.is_set() or self.threads.may_call else self.held_by(seconds)
        self._send("looked", None if held is None else held.ticket)

    def stop(self, _: None) -> None:
        """Report where the rank is, and stop it: the run is over."""
        self._send("located", position_of(threading.main_thread()))
        with self._changed:
            self.stopping = True
            self._changed.notify_all()
            waiting = list(self._open.values())
        threading.Thread(target=self._keep_stopping, daemon=True).start()
        threading.Thread(target=self._call_off, args=(waiting,), daemon=True).start()

    def _call_off(self, waiting: list[LocalCall]) -> None:
        with self.identity():  # a callback of the learner's may make calls
            for local in waiting:
                local.call_off()

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
        entered = time.perf_counter() - self.job.started
        self.stoppable = True
        try:
            yield
        finally:
            self.stoppable = False
            self.span = (entered, time.perf_counter() - self.job.started)

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # it gets no signal
            yield
            return
        before, self.stoppable = self.stoppable, False
        try:
            yield
        finally:
            self.stoppable = before

    def join_group(self, store: dist.Store) -> None:
        if self.job.nccl:
            device = torch.device("cuda", self.job.place.device or 0)
            default_group.join(store, self.rank, self.world_size, "cpu:gloo,cuda:nccl", device)
        else:
            super().join_group(store)

    # -- threads ---------------------------------------------------------------------------------------------------

    def identity(self) -> AbstractContextManager[None]:
        return interposer.interposed(self)

    @property
    def _blocked(self) -> bool:
        """Return whether the rank can make no other call while the calling thread waits."""
        return not interposer.is_interposed() and not self.threads.may_call

    # -- the peers: see collectives.rank.Peers ---------------------------------------------------------------------

    def called(self, local: LocalCall) -> None:
        if self.done.is_set():
            raise RuntimeError(
                f"rank {self.rank}: a thread called {local.call.variant} after the function had returned. Join the "
                "thread before the return."
            )
        local.ticket = local.progress.index
        with self._changed:
            if self.stopping:
                raise Stopped
            self._open[local.ticket] = local
        self._send("called", local.ticket, local.call, local.waits and self._blocked, True)

    def wait_for(self, local: LocalCall) -> None:
        if local.future is not None and local.ticket in self._open and self._blocked:
            self._send("waits", local.ticket)
        with self._changed:
            self._changed.wait_for(lambda: self.stopping or local.ticket not in self._open)
        if self.stopping:
            raise Stopped

    def called_outside(self, rank: int, call: Call) -> None:
        self._send("outside", call)
        with self._changed:
            self._changed.wait_for(lambda: self.stopping)
        raise Stopped

    # -- tensors on a GPU ------------------------------------------------------------------------------------------

    def _collective(self, operator: Any, arguments: dict[str, Any], local: LocalCall) -> Any:
        if self.job.place.device is None or not next(tensors_in(arguments)).is_cuda:
            return super()._collective(operator, arguments, local)
        if self.job.nccl:
            return self._at_once(local)
        if not is_asynchronous(local.call, arguments):
            return self._completed(local)
        # A rank waits for its peers even in an asynchronous call: gloo's own Work knows the GPU's streams, and ours
        # would not.
        local.progress.waited_from = local.call.issued
        self.called(local)
        self.wait_for(local)
        result = local.result()
        local.progress.done = local.progress.now()
        return result

    def _at_once(self, local: LocalCall) -> Any:
        self._send("called", local.progress.index, local.call, False, False)
        result = local.result()
        local.progress.done = local.progress.now()
        return result
