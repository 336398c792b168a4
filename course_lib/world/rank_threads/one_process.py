"""Refusals of torch functions that can run only once at a time in a process, which simulated ranks share.

torch's profiler crashes the process when two threads start it. torch.export sets flags and patches modules for the
whole process while it traces. When two threads trace at once, the flags stay set, and DDP refuses every forward.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import profiler

from ...errors import CourseError
from ..torch_hooks import interposer
from ..torch_hooks.patching import Replacement


def replacements() -> Iterator[Replacement]:
    yield profiler, "_prepare_profiler", _refused_on_ranks("torch's profiler", profiler._prepare_profiler)
    yield torch.export, "export", _refused_on_ranks("torch.export", torch.export.export)
    yield torch.export, "draft_export", _refused_on_ranks("torch.export", torch.export.draft_export)
    yield torch.jit, "trace", _refused_on_ranks("torch.jit.trace", torch.jit.trace)


def _refused_on_ranks(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if interposer.current() is not None:
            raise CourseError(
                f"{name} changes the state of the whole process, and simulated ranks share one process. Give each rank "
                'a process: World(..., backend="processes").'
            )
        return function(*args, **kwargs)

    return call
