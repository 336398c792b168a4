"""Keeping the meter out of what torch.compile traces and compiles."""

from __future__ import annotations

from typing import Any

from torch._C._dynamo import eval_frame
from torch._guards import TracingContext

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def tracing() -> bool:
    """Whether torch.compile traces on the calling thread. Its tensors have no memory, and sizes that are symbols."""
    return TracingContext.try_get() is not None


def untraced(fn: Any) -> Any:
    """`fn`, a function of ours that runs within the learner's. torch.compile, which would compile it and all that it
    calls, runs it as it is."""
    eval_frame.set_code_exec_strategy(fn.__code__, _SKIP)
    return fn
