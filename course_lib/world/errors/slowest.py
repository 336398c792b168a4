"""The slow rank of a run: the one that the others waited for, and what it did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from ...meter import Interval, Timeline
from ..collectives.call import Call


def slowest(calls: Sequence[Sequence[Call]], timelines: Sequence[Timeline]) -> str:
    """Return which rank delayed its collectives most, by how much, and whether it computed or waited."""
    arrivals: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for rank, theirs in enumerate(calls):
        for call in theirs:
            if call.op not in ("send", "recv", "new_group"):
                arrivals[call.times.match][rank] = call.times.issued
    shared = [sorted((time, rank) for rank, time in one.items()) for one in arrivals.values() if len(one) > 1]
    if not shared:
        return "No two ranks called a collective together, so no rank delayed another."
    delays: defaultdict[int, list[float]] = defaultdict(list)
    for *_, (before, _), (last, rank) in shared:
        delays[rank].append(last - before)
    slow = max(delays, key=lambda rank: sum(delays[rank]))
    others = [_length(one.computed) for one in timelines if one.rank != slow]
    mine = timelines[slow]
    return (
        f"Rank {slow} was last in {len(delays[slow])} of {len(shared)} collectives, and alone delayed them by "
        f"{_ms(sum(delays[slow]))}. It computed for {_ms(_length(mine.computed))} and waited for "
        f"{_ms(_length(mine.waited))}; the other ranks computed for {_ms(median(others))} (median)."
    )


def _length(intervals: Iterable[Interval]) -> float:
    return sum(interval.seconds for interval in intervals)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
