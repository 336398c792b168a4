"""Stopping a rank's thread: raise `Stopped` in it, between two steps of its Python code."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from traceback import walk_stack
from types import FrameType
from typing import Any

from ..collectives.fault import Stopped
from ..learner_code import stack_of
from . import interrupts
from .rank_state import RankState


class Stoppable(threading.Thread):
    """A rank's thread. It can be stopped only in the learner's code."""

    rank_state: RankState

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._guard = threading.Lock()
        self._stoppable = False  # the thread is in the learner's code, and holds none of our locks
        self._stop_sent = False

    def stop(self) -> bool:
        """Raise `Stopped` in the learner's code. Return False, with nothing raised, if the thread is not there."""
        self.rank_state.stopping = True
        with self._guard:
            if not self._stoppable or must_finish(stack_of(self)):
                return False
            self._stop_sent = True
            _send(self, _STOPPED)
            return True

    def stoppably(self, learners: Callable[[], Any]) -> Any:
        """Call `learners` on this thread, where it may be stopped."""
        try:
            self._stoppable = True
            return learners()
        finally:
            self._stoppable = False
            self._outlive_stop()

    def _outlive_stop(self) -> None:
        """Wait for a `Stopped` that was sent and has not arrived, or discard it; none arrives afterwards."""
        with contextlib.suppress(Stopped), self._guard:
            if self._stop_sent:
                _send(self, None)

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """Prevent `Stopped` inside the block: it could leave a lock held that all ranks need."""
        if threading.get_ident() != self.ident:  # a thread that delivers a result gets no `Stopped`
            yield
            return
        with self._guard:
            before, self._stoppable = self._stoppable, False
        try:
            yield
        finally:
            self._stoppable = before


def without_stopped(report: Callable[[sys.UnraisableHookArgs], object]) -> Callable[[sys.UnraisableHookArgs], object]:
    """Return a `sys.unraisablehook` that ignores `Stopped`, and passes everything else to `report`.

    Python drops an exception raised in a `__del__` with a warning; another `Stopped` follows.
    """
    return partial(_report_dropped, report)


def _report_dropped(report: Callable[[sys.UnraisableHookArgs], object], dropped: sys.UnraisableHookArgs) -> None:
    if dropped.exc_type is not Stopped:
        report(dropped)


def must_finish(frame: FrameType | None) -> bool:
    """Return whether the stack of `frame` has a hook of `without_stopped`, where Python would print a `Stopped`, or
    `logging`, whose lock it would leave held."""
    codes = [one.f_code for one, _ in walk_stack(frame)] if frame is not None else []
    return any(code is _report_dropped.__code__ or code.co_filename == logging.__file__ for code in codes)


def stop_looking() -> None:
    """Stop all threads from looking for sent exceptions. Call it once, when all have arrived or are no longer needed.

    Up to Python 3.12, after an exception is sent to a thread, every thread of the process looks for one at each call
    and each turn of a loop, until one arrives: all code runs slower, and code with a profiler makes no progress. A
    discarded exception, or one that is too late, never arrives. So the calling thread sends itself one.
    """
    with interrupts.put_off():  # if an interrupt arrived first, `Stopped` would arrive in the learner's code
        try:
            _send(threading.current_thread(), _STOPPED)
            while True:
                pass
        except Stopped:
            pass


_STOPPED = ctypes.py_object(Stopped)


def _send(thread: threading.Thread, exception: ctypes.py_object[type[Stopped]] | None) -> None:
    """Raise an exception in a thread. It replaces one that has not arrived; None only discards that one."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), exception)
