"""Keeping the meter out of what torch.compile traces and compiles."""

from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def tracing() -> bool:
    """Return whether the calling thread makes fake tensors, as torch.compile does.

    They have no memory, and their sizes may be symbols. (A dry run has a mode of its own kind: its fake tensors are
    counted.)
    """
    return TracingContext.try_get() is not None or type(torch._C._get_dispatch_mode(_FAKE)) is FakeTensorMode


def untraced(fn: Any) -> Any:
    """`fn`, a function of ours that runs within the learner's. torch.compile, which would compile it and all that it
    calls, runs it as it is."""
    eval_frame.set_code_exec_strategy(fn.__code__, _SKIP)
    return fn
