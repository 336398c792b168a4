"""The variables of a function at the moment when it returns."""

from types import FrameType

from ..source_line import is_learners


class Returning:
    """The variables of a function, kept after its return by keeping the function's frame.

    When the function is a library's wrapper, such as the one that `torch.no_grad()` puts around a learner's function,
    the variables of the learner's function are kept as well. A profiler would see the call, too. But there is only one
    profiler for each thread, and the learner may use it.
    """

    def __init__(self, caller: FrameType) -> None:
        self._caller: FrameType | None = caller  # the frame that calls the function
        self._frames: list[FrameType] = []

    def look(self, frame: FrameType | None) -> None:
        """Remember the frames between `frame` and the caller, once, while the function runs."""
        inner = []
        while frame is not None and frame is not self._caller:
            inner.append(frame)
            frame = frame.f_back
        if frame is None or self._frames:
            return
        self._frames = inner[-1:]
        for number, outer in enumerate(reversed(inner), 1):
            if is_learners(outer.f_code):
                self._frames = inner[-number:]
                break

    def release(self) -> None:
        self._frames.clear()
        self._caller = None
