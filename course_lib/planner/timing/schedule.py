"""A step as work on streams: which work runs in parallel, and which has to wait.

A stream does one thing at a time, in the order of issue, as CUDA streams do. Work also waits for what it needs on other
streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

COMPUTE, COMMUNICATION, TENSOR, PIPELINE, HOST = "compute", "communication", "tensor parallel", "pipeline", "host"
CONTEXT, EXPERT = "context parallel", "expert parallel"
"""The streams of a step: see step.py."""
AWAITED = (TENSOR, EXPERT, CONTEXT, PIPELINE, COMMUNICATION, HOST)
"""The streams that computing may wait for. A moment in which several work counts for the first of them: see `waits`.

Work of the first four is needed for the next layer or micro-batch. Much of the last two's can also run ahead or late.
"""


class Span(NamedTuple):
    """Work on a stream, from `start` to `end`, in seconds from the start of the step."""

    stream: str
    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All work of a step, in the order in which it was issued."""

    spans: tuple[Span, ...]

    @cached_property
    def seconds(self) -> float:
        """The time when the last work ends."""
        return max((span.end for span in self.spans), default=0.0)

    def busy(self, stream: str) -> float:
        """Return the seconds in which `stream` works."""
        return sum(span.seconds for span in self.spans if span.stream == stream)

    def exposed(self, stream: str, behind: str) -> float:
        """Return the seconds in which `stream` works and `behind` does not: the time that is not hidden."""
        covers = [span for span in self.spans if span.stream == behind]  # in order, without overlaps
        hidden, first = 0.0, 0
        for span in (span for span in self.spans if span.stream == stream):
            while first < len(covers) and covers[first].end <= span.start:
                first += 1
            for cover in covers[first:]:
                if cover.start >= span.end:
                    break
                hidden += min(span.end, cover.end) - max(span.start, cover.start)
        return self.busy(stream) - hidden

    def covered(self, streams: Sequence[str]) -> float:
        """Return the seconds in which one of `streams` or more works."""
        covered, until = 0.0, 0.0
        for span in sorted((span for span in self.spans if span.stream in streams), key=attrgetter("start")):
            if span.end > until:
                covered += span.end - max(until, span.start)
                until = span.end
        return covered

    def waits(self) -> dict[str, float]:
        """Return the seconds in which nothing is computed, each for the first stream of `AWAITED` that works then."""
        waits, before, covered = dict.fromkeys(AWAITED, 0.0), [COMPUTE], self.covered([COMPUTE])
        working = {span.stream for span in self.spans}
        for stream in (stream for stream in AWAITED if stream in working):
            before.append(stream)
            more = self.covered(before)
            waits[stream], covered = more - covered, more
        return waits


class Streams:
    """The streams of a step while its work is issued."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._free: dict[str, float] = {}  # when each stream can begin its next work

    def issue(self, stream: str, name: str, seconds: float, after: Sequence[Span] = ()) -> Span:
        """Issue `seconds` of work on `stream`, once it is free and all of `after` is done."""
        self.wait(stream, after)
        start = self._free[stream]
        span = Span(stream, name, start, start + seconds)
        self._free[stream] = span.end
        self._spans.append(span)
        return span

    def wait(self, stream: str, after: Sequence[Span]) -> None:
        """Let later work of `stream` wait for all of `after`."""
        free = self._free.get(stream, 0.0)
        for span in after:
            if span.end > free:  # `max` would take twice as long, and a plan does this a thousand times
                free = span.end
        self._free[stream] = free

    def timeline(self) -> Timeline:
        """Return the work that was issued so far."""
        return Timeline(spans=tuple(self._spans))
