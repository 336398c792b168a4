"""The learner's line that allocated a block, and whether DDP allocated it for a bucket. Both are read from the
stack."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType

import torch
from torch.nn.parallel import distributed

from .ledger import Block

_OTHERS, _LEARNERS, _DDPS = range(3)  # the owner of a file
_MAKE_BUCKETS = ("_ddp_init_helper", "_pre_forward")
"""The functions of DDP from which its C++ part allocates buckets."""


class Places:
    """Fills in the source line and layout of blocks.

    Args:
        is_learners: returns whether code is the learner's own.
    """

    def __init__(self, is_learners: Callable[[CodeType], bool]) -> None:
        self._is_learners = is_learners
        self._kinds: dict[str, int] = {}  # by filename: a cache, because this runs for each frame

    def note(self, block: Block, layout: tuple[torch.dtype, torch.Size], frame: FrameType | None) -> None:
        """Set the layout of `block`, its line from the stack of `frame`, and its category if DDP made it."""
        block.layout = layout
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code.co_filename)
            if kind is None:
                kind = kinds[code.co_filename] = self._kind(code)
            if kind == _LEARNERS:
                block.line = (code.co_filename, frame.f_lineno, code.co_name)
                return
            if kind == _DDPS and code.co_name in _MAKE_BUCKETS:
                block.guess("communication")
            frame = frame.f_back

    def _kind(self, code: CodeType) -> int:
        if self._is_learners(code):
            return _LEARNERS
        return _DDPS if code.co_filename == distributed.__file__ else _OTHERS
