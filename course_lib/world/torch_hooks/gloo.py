"""gloo for ranks: one network device per process, and process groups that close fast."""

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ...errors import CourseError

_Gloo: Any = c10d.ProcessGroupGloo

A_FORK = (
    "World.run: this process was forked from one that has run a world, and has none of the threads and connections "
    'that worlds need. Start it with "spawn" or "forkserver", such as multiprocessing.get_context("spawn").Pool(). '
    "Or run the worlds in the first process."
)
"""Why a process that was forked from the kernel runs no world."""


@contextmanager
def _threads_that_wait_their_turn() -> Iterator[None]:
    """Let threads that start inside the block not take the core of the thread that wakes them, where Linux decides.

    What a rank sends wakes the device's thread while the rank still holds the lock of the connection. On the rank's
    core, the thread would ask for this lock again and again until its turn is over: a third of the CPU time of a run.
    """
    normal = sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER
    if normal:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        if normal:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Loopback:
    """gloo's network device, made once and shared by all ranks of the process.

    A device owns one thread that serves sockets. Closing a connection waits for that thread's next turn, which comes
    every 10 ms if nothing happens. With a device for each rank, a run of four ranks takes 60 ms to close.

    Attributes:
        interface: the network interface to use instead of the loopback, if ranks are on several machines.
    """

    interface: str | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._device: Any = None
        self._made_in = 0  # the process that made the device
        self._pulse: list[Any] = []

    def options(self, timeout: timedelta, threads: int = 2) -> Any:
        """Return the options of a group on this device, with `threads` threads for its collectives."""
        with self._lock:
            if self._device is None:
                where = {"hostname": "127.0.0.1"} if self.interface is None else {"interface": self.interface}
                with _threads_that_wait_their_turn():
                    self._device = _Gloo.create_device(**where, lazy_init=False)
                self._made_in = os.getpid()
        options = _Gloo._Options()
        options._devices, options._threads, options._timeout = [self._device], threads, timeout
        return options

    def refuse_a_fork(self) -> None:
        """Raise a `CourseError` in a process that was forked with the device: its thread is not there, so that a group
        would wait forever."""
        if self._device is not None and self._made_in != os.getpid():
            raise CourseError(A_FORK)

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Keep the device's thread busy while groups close inside the block: 1 ms instead of 20."""
        if not self._pulse:
            store = dist.HashStore()
            options = self.options(timedelta(seconds=10), threads=1)
            with ThreadPoolExecutor(2) as threads:
                self._pulse = list(threads.map(lambda rank: _Gloo(store, rank, 2, options), range(2)))
        over = threading.Event()

        def beat() -> None:
            try:
                while not over.is_set():
                    works = [side.allreduce([torch.zeros(1)]) for side in self._pulse]
                    for work in works:
                        work.wait()
            except RuntimeError:  # the machine stopped for 10 s: only these groups close slowly
                self._pulse = []

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        """Close the device before Python exits: otherwise C++ would end the process because of its running thread."""
        with self._lock:
            self._pulse, self._device = [], None


loopback = Loopback()
atexit.register(loopback.close)


class LoopbackGloo(_Gloo):
    """`ProcessGroupGloo` on the shared device. `init_process_group` and `new_group` make it while ranks run.

    Its destructor joins gloo's threads, which need the GIL to free the tensors of their last calls. torch releases the
    GIL meanwhile if Python drops the last reference to the group, but not if an object of C++ does, such as DDP's
    reducer: then all threads wait forever. So each rank keeps its groups (`InterposedRank.groups`), and drops them only
    after a garbage collection, when no such object holds them.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, **since_torch_2_15: bool) -> None:
        super().__init__(store, rank, size, loopback.options(timeout))
