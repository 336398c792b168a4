"""Interrupts: put off Jupyter's interrupt until it does no harm, and refuse a run that interrupts another."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import CourseError

PATIENCE = 10.0
"""Seconds for which an interrupt is put off. After them, a second one acts at once: something of the learner's may hold
the main thread, such as a `__del__` that waits, and only an exception ends that."""


class _Late(list[Any]):
    """A signal handler that keeps its arguments, and passes those of an impatient interrupt on to `handler`."""

    def __init__(self, handler: Any) -> None:
        super().__init__()
        self._handler, self._until = handler, 0.0

    def __call__(self, *signal_and_frame: Any) -> None:
        if self and time.monotonic() > self._until and callable(self._handler):
            self.clear()
            self._handler(*signal_and_frame)
            return
        if not self:
            self._until = time.monotonic() + PATIENCE
        self.append(signal_and_frame)


@contextmanager
def put_off() -> Iterator[list[Any]]:
    """Put an interrupt off to the end of the block. The list contains it as soon as it arrives; clear the list to
    discard it. A second one acts at once if the first is older than `PATIENCE`.

    A nested block yields the outer block's list, and leaves the interrupt to the outer block.

    Python raises `KeyboardInterrupt` wherever the main thread is: between two lines that belong together, in an import,
    or in a callback of a freed object, where Python prints the exception and drops it.
    """
    if threading.current_thread() is not threading.main_thread():  # it gets no interrupts
        yield []
        return
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Late):
        yield handler
        return
    late = _Late(handler)
    signal.signal(signal.SIGINT, late)
    try:
        yield late
    finally:
        signal.signal(signal.SIGINT, handler)
        if late and callable(handler):
            handler(*late[0])


@contextmanager
def one_run(lock: Any) -> Iterator[None]:
    """Hold `lock`, an `RLock`, for one run. The run of another thread waits.

    Raises:
        CourseError: this thread holds it: a signal handler or a finalizer has called it in the middle of its run.
    """
    if lock._is_owned():
        raise CourseError(
            "World.run was called in the middle of a run, by a signal handler or a finalizer in the same thread. Ranks "
            "work for one run at a time. Set a flag there, and start the second run when the first one has ended."
        )
    with lock:
        yield
