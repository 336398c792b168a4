"""Where in the learner's code memory was made, and whether DDP made it for a bucket: both are on the stack."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch
from torch.nn.parallel import distributed

from .ledger import Block

_Value = TypeVar("_Value")

_OTHERS, _LEARNERS, _DDPS = range(3)  # whose a file is
_MAKE_BUCKETS = ("_ddp_init_helper", "_pre_forward")
"""The functions of DDP from which its C++ part allocates buckets."""


class Places:
    """Tells blocks their place.

    Args:
        is_learners: whether code is the learner's own.
    """

    def __init__(self, is_learners: Callable[[CodeType], bool]) -> None:
        self._is_learners = is_learners
        self._kinds: dict[str, int] = {}  # by filename: asked for each frame, it would take most of the time
        self._values: dict[Any, Any] = {}

    def tell(self, block: Block, layout: tuple[torch.dtype, torch.Size], frame: FrameType | None) -> None:
        """Give `block` its layout, the learner's line on the stack of `frame`, and its category if DDP made it."""
        block.layout = self._alike(layout)
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code.co_filename)
            if kind is None:
                kind = kinds[code.co_filename] = self._kind(code)
            if kind == _LEARNERS:
                block.line = self._alike((code.co_filename, frame.f_lineno, code.co_name))
                return
            if kind == _DDPS and code.co_name in _MAKE_BUCKETS:
                block.guess("communication")
            frame = frame.f_back

    def _kind(self, code: CodeType) -> int:
        if self._is_learners(code):
            return _LEARNERS
        return _DDPS if code.co_filename == distributed.__file__ else _OTHERS

    def _alike(self, value: _Value) -> _Value:
        """The first value that equals this one: a step makes the same blocks again and again."""
        first: _Value = self._values.setdefault(value, value)
        return first
