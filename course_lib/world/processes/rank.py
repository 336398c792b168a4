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
from math import inf
from typing import Any

import torch.distributed as dist

from ...meter import tensors_in
from ..collectives.call import Call
from ..collectives.fault import Stopped
from ..collectives.local_call import LocalCall
from ..collectives.rank import InterposedRank
from ..collectives.recorder import is_asynchronous
from ..learner_code import source_line_of
from ..torch_hooks import private
from .protocol import Job

STOP = signal.SIGUSR1  # the signal to a rank's main thread: raise `Stopped` in the learner's function
STOP_EVERY = 0.02  # seconds between two signals to a rank that must stop


class ProcessRank(InterposedRank):
    """The interposer of this process. It is its own `collectives.rank.Peers`: the peers are behind messages.

    Attributes:
        stopping: the run is over; the rank must stop.
        stoppable: the main thread is in the learner's code, where an exception is safe.
        span: when it entered and left that code.
        done: set when it has left that code for good.
    """

    def __init__(self, job: Job, send: Callable[..., None], groups: list[dist.ProcessGroup]) -> None:
        super().__init__(job.rank, self, job.started, ("cpu",) if job.place.device is None else ("cpu", "cuda"))
        self.groups = groups  # they outlive the run
        self.job = job
        self.stopping = False
        self.stoppable = False
        self.span = (inf, inf)
        self.done = threading.Event()
        self._send = send
        self._changed = threading.Condition()
        self._open: dict[int, LocalCall] = {}  # calls that may not enter the backend yet, by index

    @property
    def calls(self) -> list[Call]:
        """Return the rank's calls."""
        return self.recorder.calls

    # -- messages from the kernel ----------------------------------------------------------------------------------

    def proceed(self, index: int) -> None:
        """Let the call with this index enter the backend: every member has called."""
        local = self._open.get(index)
        if local is None:
            return
        if local.future is not None:  # else the rank itself starts it
            local.start()
            local.deliver(local.error)
            if local.error is not None:
                self._send("refused", index, str(local.error))
        with self._changed:
            self._open.pop(index)
            self._changed.notify_all()

    def stop(self, _: None) -> None:
        """Report the learner's line that the rank is at, and stop the rank: the run is over."""
        self._send("located", source_line_of(threading.main_thread()))
        with self._changed:
            self.stopping = True
            waiting = list(self._open.values())
        for local in waiting:  # without the condition, because a callback of the learner's may wait for something
            local.call_off()
        with self._changed:
            self._changed.notify_all()
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
        entered = time.perf_counter() - self.job.started
        self.stoppable = True
        try:
            yield
        finally:
            self.stoppable = False
            self.span = (entered, time.perf_counter() - self.job.started)

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # autograd's, which gets no signal
            yield
            return
        before, self.stoppable = self.stoppable, False
        try:
            yield
        finally:
            self.stoppable = before

    # -- the peers: see collectives.rank.Peers ---------------------------------------------------------------------

    def called(self, local: LocalCall) -> None:
        local.ticket = len(self.calls) - 1
        with self._changed:
            if self.stopping:
                raise Stopped
            self._open[local.ticket] = local
        self._send("called", local.ticket, local.call, local.future is None, True)

    def wait_for(self, local: LocalCall) -> None:
        if local.future is not None and local.ticket in self._open:
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

    def _collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[[], Any]) -> Any:
        if not next(tensors_in(arguments)).is_cuda:
            return super()._collective(operator, arguments, execute)
        local = self._recorded(operator, arguments, execute)
        if self.job.nccl:
            return self._at_once(local)
        if not is_asynchronous(local.call, arguments):
            return self._completed(local)
        # A rank waits for its peers even in an asynchronous call: gloo's own Work knows the GPU's streams, and ours
        # would not.
        local.call.waited_from = local.call.issued
        self.called(local)
        self.wait_for(local)
        result = local.result()
        local.call.done = local.call.now()
        return result

    def _at_once(self, local: LocalCall) -> Any:
        """Hand the call to NCCL at once; its work ends when the GPU reaches it."""
        self._send("called", len(self.calls) - 1, local.call, False, False)
        result = local.result()
        local.call.done = local.call.now()
        return result
