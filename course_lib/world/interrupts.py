"""Putting off Jupyter's interrupt, to a moment when it does no harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def put_off() -> Iterator[list[Any]]:
    """Put an interrupt off to the end of the block. It is in the list as soon as it comes; who clears that has dealt
    with it.

    Python raises `KeyboardInterrupt` wherever the main thread is: between two lines that belong together, in an import,
    or in a callback that is run when an object is freed, where it is printed and forgotten.
    """
    late: list[Any] = []
    if threading.current_thread() is not threading.main_thread():  # where Python delivers no interrupts
        yield late
        return
    handler = signal.signal(signal.SIGINT, lambda *signal_and_frame: late.append(signal_and_frame))
    try:
        yield late
    finally:
        signal.signal(signal.SIGINT, handler)
        if late and callable(handler):
            handler(*late[0])
