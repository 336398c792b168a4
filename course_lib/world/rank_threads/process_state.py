"""The process state while threads of this process are ranks, in a simulated world or a dry run."""

import gc
import itertools
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch

from ...meter import stand_ins, watched_steps
from ..torch_hooks import interposer
from ..torch_hooks.patching import Replacement, replaced
from . import own_modules, rank_state
from .interrupts import one_run
from .main import main_of_notebook
from .stopping import without_stopped

try:
    import resource
except ImportError:  # Windows does not tell a process its peak
    resource = None  # type: ignore[assignment]

_one_run = threading.RLock()
"""Held while threads are ranks, because all that this changes belongs to the process. A second run waits."""

RUNS_BETWEEN = 1000 if resource is not None else 100
"""After so many runs, all garbage of the process is collected, and after one whose peak is a quarter higher."""

_runs = itertools.count(1)

_one_collection = threading.Lock()
"""Held while garbage is collected: Python ignores a collection that a second thread begins meanwhile."""

_KERNELS_OF_ATTENTION = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
"""The settings that `torch.nn.attention.sdpa_kernel` switches, also on the CPU."""


def collect_garbage() -> None:
    """Collect the garbage of all ranks, and what is garbage only once C++ has released it, such as what a graph of
    autograd's held."""
    with _one_collection:
        for _ in range(3):
            if not gc.collect():
                break


@contextmanager
def of_threads(backends_own: Iterable[Replacement], *, measure: bool) -> Iterator[None]:
    """Let threads be ranks inside the block, with the replacements of their backend; `measure` their memory."""
    with (
        one_run(_one_run),
        _process_settings_kept(),
        _only_new_objects_collected(),
        replaced(rank_state.replacements()),
        replaced(own_modules.caches()),
        interposer.rank_threads(),
        main_of_notebook(),
        replaced(backends_own),
        meters_informed() if measure else nullcontext(),
    ):
        yield


@contextmanager
def meters_informed() -> Iterator[None]:
    with replaced(stand_ins()), watched_steps():
        yield


@contextmanager
def _process_settings_kept() -> Iterator[None]:
    """Restore what ranks set for the whole process, and `sys.excepthook`, which `init_process_group` sets.

    If ranks overlap in a `with` that changes a setting, the `with` does not restore it: the last rank to leave writes
    back what it found when it entered.
    """
    stdout, stderr = sys.stdout, sys.stderr
    dtype, excepthook, unraisablehook = torch.get_default_dtype(), sys.excepthook, sys.unraisablehook
    of_threads = threading.excepthook
    threads, mkldnn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    attention = {name: getattr(torch.backends.cuda, f"{name}_enabled")() for name in _KERNELS_OF_ATTENTION}
    sys.unraisablehook = without_stopped(unraisablehook)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = mkldnn
        for name, enabled in attention.items():
            getattr(torch.backends.cuda, f"enable_{name}")(enabled)
        sys.excepthook, sys.unraisablehook, threading.excepthook = excepthook, unraisablehook, of_threads
        sys.stdout, sys.stderr = stdout, stderr


@contextmanager
def _only_new_objects_collected() -> Iterator[None]:
    """Let Python's garbage collector look only at what ranks make.

    A full collection of a kernel with torch takes 0.2 s, and every run collects at its end: see `supervisor`. What is
    garbage only after that becomes old here, where Python rarely looks: hence a full collection now and then.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if next(_runs) % RUNS_BETWEEN == 0 or _peak.has_grown():
            gc.collect()


class _Peak:
    """The most memory that this process has held, as it was at the last full collection."""

    def __init__(self) -> None:
        self._last = _peak_now()

    def has_grown(self) -> bool:
        """Return whether it is a quarter higher: garbage takes new memory, not the place of older garbage."""
        if grown := (now := _peak_now()) > 1.25 * self._last:
            self._last = now
        return grown


def _peak_now() -> int:
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


_peak = _Peak()
