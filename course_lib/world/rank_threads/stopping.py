"""Raising `Stopped` in another thread: between two steps of its Python code, wherever that is."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..collectives.fault import Stopped
from ..learner_code import importing, stack_of
from . import interrupts
from .rank_state import RankState

Result = TypeVar("Result")

IMPORTING = 10.0
"""Seconds that a thread has to end an import before it is stopped there."""


class Stoppable(threading.Thread):
    """A rank's thread, which can be stopped in the learner's code and nowhere else.

    Attributes:
        streams: the rank's.
    """

    rank_state: RankState

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._guard = threading.Lock()
        self._stoppable = False  # whether the thread is in the learner's code, and nowhere that holds a lock of ours
        self._stop_sent = False

    def stop(self) -> None:
        """Raise `Stopped` in the learner's code, if the thread is there."""
        self.rank_state.stopping = True
        with self._guard:
            if self._stoppable:
                self._stop_sent = True
                send_stopped(self)

    def stoppably(self, learners: Callable[[], Result]) -> Result:
        """Call what may be stopped, on this thread."""
        try:
            self._stoppable = True
            return learners()
        finally:
            self._stoppable = False
            self._outlive_stop()

    def _outlive_stop(self) -> None:
        """Let a `Stopped` that was sent and has not arrived come now, and none after it."""
        with contextlib.suppress(Stopped), self._guard:
            if self._stop_sent:
                take_back(self)

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """No `Stopped` is sent while the thread is in here: it could leave a lock held that all ranks need."""
        if threading.get_ident() != self.ident:  # a thread that delivers a result, to which none is sent
            yield
            return
        with self._guard:
            before, self._stoppable = self._stoppable, False
        try:
            yield
        finally:
            self._stoppable = before


def imports(thread: threading.Thread) -> bool:
    """Whether it is importing a module, and must not be stopped: Python could never import the rest of a package of
    which it has a part, and torch imports some of its own when they are first used, for seconds."""
    return importing(stack_of(thread))


def without_stopped(report: Callable[[sys.UnraisableHookArgs], object]) -> Callable[[sys.UnraisableHookArgs], object]:
    """`sys.unraisablehook` that keeps quiet about a `Stopped`, and leaves all else to `report`.

    Python drops what is raised in a `__del__`, and says so; but another `Stopped` follows.
    """
    return lambda dropped: None if dropped.exc_type is Stopped else report(dropped)


def send_stopped(thread: threading.Thread) -> None:
    """Let `Stopped` come to a thread, in place of one that has not arrived."""
    _send(thread, ctypes.py_object(Stopped))


def take_back(thread: threading.Thread) -> None:
    """Let none come that has not arrived. To be called where one was sent, and followed by `stop_looking`."""
    _send(thread, None)


def stop_looking() -> None:
    """Let no thread look for what was sent. To be called once, when all of that has arrived or is of no use any more.

    Up to Python 3.12, when an exception has been sent to some thread, every thread of the process looks for one at each
    call and each turn of a loop, until one arrives: all code runs slower, and with a profiler never gets on. What was
    taken back, or came too late, does not arrive. So the calling thread sends itself one.
    """
    with interrupts.put_off():  # one that came first would leave the other to come in the learner's own code
        try:
            send_stopped(threading.current_thread())
            while True:
                pass
        except Stopped:
            pass


def _send(thread: threading.Thread, exception: ctypes.py_object[type[BaseException]] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), exception)
