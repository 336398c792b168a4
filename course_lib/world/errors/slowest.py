"""The slow ranks of a run: those that computed while the others waited for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...meter import Interval, Timeline


def slowest(timelines: Sequence[Timeline]) -> str:
    """Return which ranks computed longest and which one shortest, each until its last collective."""
    rows = []  # the seconds that a rank computed and waited, and the rank
    for line in timelines:
        collectives = (c for c in line.calls if c.op not in ("send", "recv", "new_group") and len(c.ranks) > 1)
        last = max((call.issued for call in collectives), default=None)
        if last is not None:
            rows.append((_seconds(line.computed, last), _seconds(line.waited, last), line.rank))
    if len(rows) < 2:
        return "No two ranks called a collective, so no rank delayed another."
    fastest, *_, slow = sorted(rows)
    ranks = "; ".join(_shown(*row) for row in rows if row[0] > (fastest[0] + slow[0]) / 2) or _shown(*slow)
    return f"Slowest: {ranks}. Fastest: {_shown(*fastest)}. Counted until each rank's last collective."


def _shown(computed: float, waited: float, rank: int) -> str:
    return f"rank {rank} computed for {1e3 * computed:.1f} ms and waited for {1e3 * waited:.1f} ms"


def _seconds(intervals: Iterable[Interval], until: float) -> float:
    """Return the length of `intervals` before the moment `until`."""
    return sum(max(0.0, min(one.end, until) - one.start) for one in intervals)
