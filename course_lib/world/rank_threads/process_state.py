"""What is changed in this process while threads of it are ranks: of a simulated world, or of a dry run."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch

from .. import measured
from ..torch_hooks import interposer
from ..torch_hooks.patching import SharedContext
from . import rank_state
from .stopping import untold


@contextmanager
def of_threads(*, measured: bool) -> Iterator[None]:
    """Inside it, threads may be ranks, whose memory is `measured` or not."""
    contexts = [_process_settings, _collector, rank_state.streams_by_thread, interposer.rank_threads]
    with ExitStack() as stack:
        for context in [*contexts, _meters_told] if measured else contexts:
            stack.enter_context(context.in_use())
        yield


@contextmanager
def _process_settings_kept() -> Iterator[None]:
    """Undo what ranks set for the whole process, and what `init_process_group` does to `sys.excepthook`."""
    stdout, stderr = sys.stdout, sys.stderr
    dtype, excepthook, unraisablehook = torch.get_default_dtype(), sys.excepthook, sys.unraisablehook
    threads = torch.get_num_threads()
    sys.unraisablehook = untold(unraisablehook)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        sys.excepthook, sys.unraisablehook = excepthook, unraisablehook
        sys.stdout, sys.stderr = stdout, stderr


class _Collector:
    """Python's garbage collector, which looks at what ranks make, and at nothing else until they are done.

    All that a kernel with torch holds takes it 0.2 s, which every failed run would pay: see `simulated._close`. What
    earlier runs have left in cycles is collected between runs, in `SHARE` of the time that they took; and what C's
    allocator keeps for threads that are gone is given back to the system.
    """

    SHARE = 0.1

    def __init__(self) -> None:
        self._ran = 0.0  # seconds of runs since everything was collected
        self._cost = 0.2  # seconds that this took

    @contextmanager
    def on_new_objects(self) -> Iterator[None]:
        if gc.get_freeze_count():  # somebody else's doing
            yield
            return
        began = time.monotonic()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
            ended = time.monotonic()
            self._ran += ended - began
            if self._ran * self.SHARE >= self._cost:
                gc.collect()
                _give_back()
                self._ran, self._cost = 0.0, time.monotonic() - ended


def _give_back() -> None:
    with suppress(AttributeError, TypeError):  # it is glibc's own, and Windows has no library without a name
        ctypes.CDLL(None).malloc_trim(0)


_process_settings = SharedContext(_process_settings_kept)
_collector = SharedContext(_Collector().on_new_objects)
_meters_told = SharedContext(measured.meters_told)
