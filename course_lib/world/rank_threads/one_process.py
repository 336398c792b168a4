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
from ..torch_hooks.patching import Replacement, SharedContext, replaced


class _OneProfiler:
    """The thread that torch's profiler runs on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = threading.current_thread() if torch.autograd._profiler_enabled() else None

    def starting(self, prepare: Callable[..., None]) -> Callable[..., None]:
        def start(*args: Any, **kwargs: Any) -> None:
            me = threading.current_thread()
            with self._lock:
                if self._thread not in (None, me):
                    raise CourseError(
                        f"torch's profiler is running on {self._thread.name}, and simulated ranks share one process, "
                        "which can run only one. Profile one rank at a time, or give each rank a process: "
                        'World(..., backend="processes").'
                    )
                self._thread = me
            prepare(*args, **kwargs)

        return start

    def stopping(self, disable: Callable[[], Any]) -> Callable[[], Any]:
        def stop() -> Any:
            try:
                return disable()
            finally:
                self._thread = None

        return stop


def _not_with_peers(export: Callable[..., Any]) -> Callable[..., Any]:
    def export_once(*args: Any, **kwargs: Any) -> Any:
        if interposer.current() is not None and dist.get_world_size() > 1:
            raise CourseError(
                "torch.export changes settings of the whole process while it traces, and simulated ranks share one "
                'process. Give each rank a process: World(..., backend="processes").'
            )
        return export(*args, **kwargs)

    return export_once


def _replacements() -> Iterator[Replacement]:
    one = _OneProfiler()
    yield profiler, "_prepare_profiler", one.starting(profiler._prepare_profiler)
    yield profiler, "_disable_profiler", one.stopping(profiler._disable_profiler)
    yield torch.export, "export", _not_with_peers(torch.export.export)


one_at_a_time = SharedContext(lambda: replaced(_replacements()))
"""The context in which simulated ranks get these refusals."""
