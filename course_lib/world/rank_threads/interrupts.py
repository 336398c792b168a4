"""Interrupts: put off Jupyter's interrupt until it does no harm."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Late(list[Any]):
    """A signal handler that keeps its arguments."""

    def __call__(self, *signal_and_frame: Any) -> None:
        self.append(signal_and_frame)


@contextmanager
def put_off() -> Iterator[list[Any]]:
    """Put an interrupt off to the end of the block. The list contains it as soon as it arrives; clear the list to
    discard it.

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
    late = _Late()
    signal.signal(signal.SIGINT, late)
    try:
        yield late
    finally:
        signal.signal(signal.SIGINT, handler)
        if late and callable(handler):
            handler(*late[0])
