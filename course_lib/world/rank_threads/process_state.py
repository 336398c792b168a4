"""The process state while threads of this process are ranks, in a simulated world or a dry run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from .. import measured
from ..torch_hooks import interposer
from ..torch_hooks.patching import SharedContext
from . import rank_state
from .stopping import without_stopped


@contextmanager
def of_threads(*, measured: bool) -> Iterator[None]:
    """Let threads be ranks inside the block; `measured`: their memory is measured."""
    contexts = [_process_settings, _collector, rank_state.state_by_thread, interposer.rank_threads]
    with ExitStack() as stack:
        for context in [*contexts, _meters_informed] if measured else contexts:
            stack.enter_context(context.in_use())
        yield


@contextmanager
def _process_settings_kept() -> Iterator[None]:
    """Restore what ranks set for the whole process, and `sys.excepthook`, which `init_process_group` sets."""
    stdout, stderr = sys.stdout, sys.stderr
    dtype, excepthook, unraisablehook = torch.get_default_dtype(), sys.excepthook, sys.unraisablehook
    threads = torch.get_num_threads()
    sys.unraisablehook = without_stopped(unraisablehook)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        sys.excepthook, sys.unraisablehook = excepthook, unraisablehook
        sys.stdout, sys.stderr = stdout, stderr


@contextmanager
def _new_objects_collected() -> Iterator[None]:
    """Let Python's garbage collector look only at what ranks make, and collect that at the end.

    A full collection of a kernel with torch takes 0.2 s, and every failed run collects: see `simulated.backend._close`.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()


# Process-wide, because what they change belongs to the process, and several runs may overlap in it.
_process_settings = SharedContext(_process_settings_kept)
_collector = SharedContext(_new_objects_collected)
_meters_informed = SharedContext(measured.meters_informed)
