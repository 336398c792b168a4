"""What is changed in this process while threads of it are ranks: of a simulated world, or of a dry run."""

from __future__ import annotations

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
    contexts = [_process_settings, streams.streams_by_thread, interpose.rank_threads]
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


_process_settings = Shared(_process_settings_kept)
_owners_told = Shared(metered.owners_told)
