"""`RankThread`: a rank that is a thread of this process, behaves like a process, and can be stopped."""

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist

from ...meter import MemoryMeter, MemoryReport
from ..collectives.fault import Leaving, leaving
from ..collectives.rank import InterposedRank
from ..error_report import ErrorReport
from ..pickling.calls import FunctionCall
from ..pickling.kernel_classes import KernelUnpickler, with_kernels_classes
from ..torch_hooks import interposer, loss_parallel, private
from .coordinator import ThreadCoordinator
from .main import is_main, unpack_on_rank
from .process_state import collect_garbage
from .rank_state import RankState
from .stopping import Stoppable

ENDING = 2.0
"""Seconds for which Python's end waits for ranks that were left behind. Jupyter kills a kernel after five."""


class RankThread(Stoppable, InterposedRank):
    """One rank: its thread, its rank state and, afterwards, its result or exception.

    Attributes:
        finish: set when the rank may close its groups. If it has left in time, no garbage holds them then.
    """

    def __init__(
        self,
        rank: int,
        coordinator: ThreadCoordinator,
        packed: bytes,
        size_of: Callable[[int], int] | None,
        gpu_bytes: int | None = None,
    ) -> None:
        Stoppable.__init__(self, name=f"rank {rank}")
        InterposedRank.__init__(self, rank, coordinator.world_size, coordinator, coordinator.started, self)
        if size_of is not None:
            self.meter = MemoryMeter(rank, started=coordinator.started, size_of=size_of, gpu_bytes=gpu_bytes)
        self.coordinator = coordinator
        self.rank_state = RankState(rank, coordinator.world_size)
        self.generator = self.rank_state.torch
        self._result: Any = None
        self.raised: ErrorReport | None = None
        self.finish = threading.Event()
        self._groups = interposer.no_groups()
        self._packed = packed

    def identity(self) -> contextlib.AbstractContextManager[None]:
        return interposer.interposed(self, self._groups)

    @property
    def memory(self) -> MemoryReport | None:
        """Return the rank's memory; None if not measured, or if the rank was left behind and still changes it."""
        return None if self.meter is None or self.is_alive() else self.meter.report()

    @property
    def result(self) -> Any:
        """Return what the rank returned, for the kernel."""
        return with_kernels_classes(self._result)

    # -- what kinds of ranks do differently --------------------------------------------------------------------------

    def call_copy(self) -> None:
        call, main = unpack_on_rank(self.unpickler(self._packed))
        with is_main(main):
            self._result = self.returned(call)

    def unpickler(self, packed: bytes) -> KernelUnpickler:
        return KernelUnpickler(packed, own_classes=True)

    def returned(self, call: FunctionCall) -> Any:
        return self.in_learners_code(*call)

    def leave_groups(self) -> None:
        """Close the rank's groups, when all ranks have left the learner's function: see `supervisor`."""
        late = self.finish.is_set()
        self.finish.wait()
        while self.delivering:  # a learner's callback runs on gloo's thread, which must not join itself
            late = True
            time.sleep(0.01)
        if late:
            collect_garbage()
        private.clear_dtensor_cache()
        loss_parallel.leave()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.groups.clear()

    # -- the thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with self.identity():
            how = self._work()
        self.coordinator.left(self.rank, how)  # when nothing here holds the learner's objects: see `leave_groups`
        with self.identity():
            self.leave_groups()

    def _work(self) -> Leaving:
        error = self._error()
        if error is not None and not self.coordinator.stopping:  # else the error is a consequence
            self.raised = ErrorReport.of(error)
        return leaving(error)

    def _error(self) -> BaseException | None:
        try:
            self.join_group(self.store)
            with contextlib.nullcontext() if self.meter is None else self.meter.watching():
                self.call_copy()
        except BaseException as error:
            return error
        return None

    def in_learners_code(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the learner's function, where the rank may be stopped."""
        self.coordinator.entered(self.rank)
        meter = self.meter
        return self.stoppably(partial(fn, *args, **kwargs) if meter is None else partial(meter.call, fn, args, kwargs))


@atexit.register
def _await_ranks() -> None:
    """Wait for ranks that were left behind in C++, such as in a long matrix product.

    Python ends a thread that returns from C++ after its own end. C++ then ends the process, with "terminate called
    without an active exception".
    """
    deadline = time.monotonic() + ENDING
    for thread in threading.enumerate():
        if isinstance(thread, RankThread):
            thread.join(max(0.0, deadline - time.monotonic()))
