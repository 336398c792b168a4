"""What is changed in this process while threads of it are ranks: of a simulated world, or of a dry run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from . import interpose, metered, streams
from .fault import Stopped
from .standins import Shared


@contextmanager
def of_threads(*, measured: bool) -> Iterator[None]:
    """Inside it, threads may be ranks, whose memory is `measured` or not."""
    contexts = [_process_settings, _older_objects_left_out, streams.streams_by_thread, interpose.rank_threads]
    with ExitStack() as stack:
        for context in [*contexts, _owners_told] if measured else contexts:
            stack.enter_context(context.in_use())
        yield


@contextmanager
def _process_settings_kept() -> Iterator[None]:
    """Undo what ranks set for the whole process, and what `init_process_group` does to `sys.excepthook`."""
    dtype, excepthook, unraisablehook = torch.get_default_dtype(), sys.excepthook, sys.unraisablehook
    threads = torch.get_num_threads()
    # In a `__del__`, Python drops a `Stopped` and says so; but another follows.
    sys.unraisablehook = lambda dropped: None if dropped.exc_type is Stopped else unraisablehook(dropped)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        sys.excepthook, sys.unraisablehook = excepthook, unraisablehook


@contextmanager
def _older_objects_left_to_themselves() -> Iterator[None]:
    """Let Python's garbage collector look at what ranks make, and at nothing else.

    All that a kernel with torch holds takes it 0.2 s, which every failed run would pay: see `simulated._close`.
    """
    if gc.get_freeze_count():  # somebody else's doing
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


_process_settings = Shared(_process_settings_kept)
_older_objects_left_out = Shared(_older_objects_left_to_themselves)
_owners_told = Shared(metered.owners_told)
