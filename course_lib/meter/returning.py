"""A function's variables at the moment it returns."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Returning:
    """Keeps the variables of a function beyond its return: a frame that somebody holds, holds them.

    Where the function is a library's wrapper, such as what `torch.no_grad()` makes of a learner's function, those of
    the learner's as well. (A profiler would see the call, too; but there is one for each thread, and it may be the
    learner's.)

    Args:
        caller: the frame that calls the function.
        is_learners: whether code is the learner's own.
    """

    def __init__(self, caller: FrameType, is_learners: Callable[[CodeType], bool]) -> None:
        self._caller: FrameType | None = caller
        self._is_learners = is_learners
        self._frames: list[FrameType] = []

    def look(self, frame: FrameType | None) -> None:
        """The function runs, and has called what runs in `frame`: once is enough."""
        inner = []
        while frame is not None and frame is not self._caller:
            inner.append(frame)
            frame = frame.f_back
        if frame is None or self._frames:
            return
        self._frames = inner[-1:]
        for number, outer in enumerate(reversed(inner), 1):
            if self._is_learners(outer.f_code):
                self._frames = inner[-number:]
                break

    def variables(self) -> list[Any]:
        """The values of the variables."""
        return [value for frame in self._frames for value in frame.f_locals.values()]

    def release(self) -> None:
        """Let go of the variables."""
        self._frames.clear()
        self._caller = None
