"""Putting off Jupyter's interrupt, to a moment when it does no harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Late(list[Any]):
    """A handler of the signal, which keeps what it is called with."""

    def __call__(self, *signal_and_frame: Any) -> None:
        self.append(signal_and_frame)


@contextmanager
def put_off() -> Iterator[list[Any]]:
    """Put an interrupt off to the end of the block. It is in the list as soon as it comes; who clears that has dealt
    with it. A block in another has its list, and leaves what is in it to the outer one.

    Python raises `KeyboardInterrupt` wherever the main thread is: between two lines that belong together, in an import,
    or in a callback that is run when an object is freed, where it is printed and forgotten.
    """
    if threading.current_thread() is not threading.main_thread():  # where Python delivers no interrupts
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
