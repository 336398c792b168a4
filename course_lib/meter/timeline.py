"""The timeline of each rank: when it computed, waited for its peers or waited for bytes, and which calls were in
flight.

A rank computes whenever it does not wait for a call. In simulated worlds all ranks share the machine's cores, so a
computing rank may also be waiting for a core. Times are seconds from the start of the run.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from .comm import CommCall
from .source_line import SourceLine

MOST_NAMED = 4  # slow ranks that a sentence names
_OTHERS = ("send", "recv", "new_group", "init_process_group")


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A time span from `start` to `end`."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class CallInterval(Interval):
    """A time span in the life of `call`."""

    call: CommCall


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The timeline of one rank from `start`, when it entered the function, to `end`, when it left, with its calls."""

    rank: int
    start: float
    end: float
    calls: Sequence[CommCall]

    @cached_property
    def waited(self) -> tuple[CallInterval, ...]:
        """The times when the rank only waited for a call, without overlaps, in order."""
        intervals, free = [], self.start
        for call in sorted(self.calls, key=lambda call: (call.waited_from, call.done)):
            start, end = max(call.waited_from, free), min(call.done, self.end)
            if start < end:
                intervals.append(CallInterval(start=start, end=end, call=call))
                free = end
        return tuple(intervals)

    @property
    def computed(self) -> tuple[Interval, ...]:
        """The times when the rank did not wait: the gaps in `waited`."""
        edges = [self.start, *(edge for wait in self.waited for edge in (wait.start, wait.end)), self.end]
        gaps = zip(edges[::2], edges[1::2], strict=True)
        return tuple(Interval(start=start, end=end) for start, end in gaps if start < end)

    @property
    def waited_for_peers(self) -> tuple[CallInterval, ...]:
        """The part of each of `waited` before every member had made its call."""
        return tuple(replace(w, end=min(w.call.matched, w.end)) for w in self.waited if w.start < w.call.matched)

    @property
    def waited_for_bytes(self) -> tuple[CallInterval, ...]:
        """The part of each of `waited` after every member had made its call, while bytes moved."""
        return tuple(replace(w, start=max(w.call.matched, w.start)) for w in self.waited if w.call.matched < w.end)

    @property
    def in_flight(self) -> tuple[CallInterval, ...]:
        """The times when the bytes of each call moved. They may overlap."""
        return tuple(
            CallInterval(start=call.matched, end=min(call.done, self.end), call=call)
            for call in self.calls
            if call.total_bytes and call.matched < self.end
        )

    @cached_property
    def overlap(self) -> float | None:
        """Bytes sent while computing / bytes sent, 0 to 1; None for a rank that sent nothing.

        The bytes of a call are assumed to move evenly while it is in flight.
        """
        waited_until = _seconds_until(self.waited)
        sent = exposed = 0.0
        for flight in self.in_flight:
            sent += flight.call.sent_bytes
            if flight.seconds:
                waited = waited_until(flight.end) - waited_until(flight.start)
                exposed += flight.call.sent_bytes * waited / flight.seconds
        return 1 - exposed / sent if sent else None

    def __str__(self) -> str:
        lines = [f"rank {self.rank}, {(self.end - self.start) * 1e3:.1f} ms"]
        for what in ("computed", "waited for peers", "waited for bytes"):
            seconds = sum(interval.seconds for interval in getattr(self, what.replace(" ", "_")))
            lines.append(f"  {what:<17}{seconds * 1e3:>8.1f} ms")
        if self.overlap is not None:
            lines.append(f"  {self.overlap:.0%} of what it sent moved while it computed")
        return "\n".join(lines)

    __repr__ = __str__


def _seconds_until(intervals: Sequence[Interval]) -> Callable[[float], float]:
    """Return a function of a moment: the total length of `intervals` before it. They are in order and do not
    overlap."""
    starts = [interval.start for interval in intervals]
    totals = [0.0, *accumulate(interval.seconds for interval in intervals)]

    def seconds_until(moment: float) -> float:
        begun = bisect(starts, moment)
        still_ahead = max(0.0, intervals[begun - 1].end - moment) if begun else 0.0
        return totals[begun] - still_ahead

    return seconds_until


def slowest(timelines: Sequence[Timeline]) -> str:
    """Return which ranks computed longest until their last collective, and which rank computed shortest.

    For the slow ranks, name the line of the calls before which they computed longest."""
    rows = []  # the seconds that a rank computed and waited, and its timeline
    for line in timelines:
        collectives = (c for c in line.calls if c.op not in _OTHERS and len(c.ranks) > 1)
        last = max((call.issued for call in collectives), default=None)
        if last is not None:
            computed, waited = (_seconds_until(intervals)(last) for intervals in (line.computed, line.waited))
            rows.append((computed, waited, line.rank, _before(line, last)))
    if len(rows) < 2:
        return "No two ranks called a collective, so no rank delayed another."
    fastest, *_, slow = sorted(rows)
    slow_ones = [row for row in rows if row[0] > (fastest[0] + slow[0]) / 2] or [slow]
    named = sorted(slow_ones)[-MOST_NAMED:]
    ranks = "; ".join(_shown(*row) for row in slow_ones if row in named)
    if len(slow_ones) > MOST_NAMED:
        ranks += f"; and {len(slow_ones) - MOST_NAMED} more that computed nearly as long"
    return f"Slowest: {ranks}. Fastest: {_shown(*fastest[:3])}. Counted until each rank's last collective."


def _shown(computed: float, waited: float, rank: int, before: str = "") -> str:
    before = f" ({before})" if before else ""
    return f"rank {rank} computed for {1e3 * computed:.1f} ms{before} and waited for {1e3 * waited:.1f} ms"


def _before(timeline: Timeline, last: float) -> str:
    """Return the line of the calls, until `last`, before which the rank computed longest, and for how long."""
    computed_until, until = _seconds_until(timeline.computed), 0.0
    by_line: defaultdict[SourceLine, float] = defaultdict(float)
    for call in sorted((call for call in timeline.calls if call.issued <= last), key=lambda call: call.issued):
        by_line[call.line] -= until
        until = computed_until(call.issued)
        by_line[call.line] += until
    line = max(by_line, key=by_line.__getitem__)
    return f"{1e3 * by_line[line]:.1f} ms of it before its calls at {line}"
