"""The learner's line that allocated a block, and whether DDP allocated it for a bucket. Both are read from the
stack."""

from __future__ import annotations

from types import FrameType

import torch
from torch.nn.parallel import distributed

from ..source_line import SourceLine, is_learners
from .ledger import Block

_MAKE_BUCKETS = ("_ddp_init_helper", "_pre_forward")
"""The functions of DDP from which its C++ part allocates buckets."""


def note_place(block: Block, layout: tuple[torch.dtype, torch.Size], frame: FrameType | None) -> None:
    """Set the layout of `block`, its line from the stack of `frame`, and its category if DDP made it."""
    block.layout = layout
    while frame is not None:
        code = frame.f_code
        if is_learners(code):
            block.line = SourceLine(code.co_filename, frame.f_lineno, code.co_name)
            return
        if code.co_name in _MAKE_BUCKETS and code.co_filename == distributed.__file__:
            block.guess("communication")
        frame = frame.f_back
