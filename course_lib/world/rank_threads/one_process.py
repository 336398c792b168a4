"""Refusals of torch functions that can run only once at a time in a process, which simulated ranks share.

torch's profiler crashes the process when two threads start it. torch.export sets flags and patches modules for the
whole process while it traces. When two threads trace at once, the flags stay set, and DDP refuses every forward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler

from ...errors import CourseError
from ..torch_hooks import interposer
from ..torch_hooks.patching import Replacement


class _OneProfiler:
    """The thread that torch's profiler runs on, or None."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._disable: Callable[[], Any] = profiler._disable_profiler

    def replacements(self) -> Iterator[Replacement]:
        """Yield the replacements that refuse a second profiler."""
        self._thread = threading.current_thread() if torch.autograd._profiler_enabled() else None
        yield profiler, "_prepare_profiler", self._starting(profiler._prepare_profiler)
        yield profiler, "_disable_profiler", self._stop

    def end_rank(self) -> None:
        """Stop the profiler that the calling rank has left running: the next run would start another on top of it."""
        if self._thread is threading.current_thread():
            self._stop()

    def _starting(self, prepare: Callable[..., None]) -> Callable[..., None]:
        def start(*args: Any, **kwargs: Any) -> None:
            self._take()
            prepare(*args, **kwargs)

        return start

    def _stop(self) -> Any:
        self._take()
        try:
            return self._disable()
        finally:
            self._thread = None

    def _take(self) -> None:
        """Make the calling thread the one that is profiled."""
        me = threading.current_thread()
        with self._lock:
            if self._thread is not None and self._thread is not me:
                raise CourseError(
                    f"torch's profiler is running on {self._thread.name}, and simulated ranks share one process, "
                    "which can run only one. Profile one rank at a time, or give each rank a process: "
                    'World(..., backend="processes").'
                )
            self._thread = me


def _not_with_peers(name: str, trace: Callable[..., Any]) -> Callable[..., Any]:
    def trace_without_peers(*args: Any, **kwargs: Any) -> Any:
        if interposer.current() is not None and dist.get_world_size() > 1:
            raise CourseError(
                f"{name} changes settings of the whole process while it traces, and simulated ranks share one "
                'process. Give each rank a process: World(..., backend="processes").'
            )
        return trace(*args, **kwargs)

    return trace_without_peers


def replacements() -> Iterator[Replacement]:
    """Yield the replacements with which simulated ranks get these refusals."""
    yield from one_profiler.replacements()
    yield torch.export, "export", _not_with_peers("torch.export", torch.export.export)
    yield torch.export, "draft_export", _not_with_peers("torch.export", torch.export.draft_export)
    yield torch.jit, "trace", _not_with_peers("torch.jit.trace", torch.jit.trace)


one_profiler = _OneProfiler()
"""The profiler of this process, of which torch has one."""
