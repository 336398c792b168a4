"""A Gantt chart of each rank's time: computing, waiting, and bytes in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .picture import BLUE, GREEN, INK, ORANGE, PURPLE, Picture, drawing, picture

# The intervals drawn for a rank: the position in its row (top, height), and the style.
LANES: dict[str, tuple[tuple[float, float], dict[str, Any]]] = {
    "computed": ((0.1, 0.5), {"facecolor": BLUE}),
    "waited for peers": ((0.1, 0.5), {"facecolor": ORANGE, "hatch": "////"}),
    "waited for bytes": ((0.1, 0.5), {"facecolor": PURPLE, "hatch": "xxxx"}),
    "in flight": ((0.65, 0.2), {"facecolor": GREEN}),
}
MOST_SHAPES = 4000
"""More intervals than this are drawn as pixels, without hatches: as shapes they would take megabytes."""


def plot_timeline(timelines: Sequence[Any]) -> Picture:
    """Return a Gantt chart: for each rank, when it computed and when it waited, and below that when its bytes moved.

    Args:
        timelines: one for each rank, such as `run.timeline`. These attributes are read: `rank`, `start`, `end`,
            `overlap`, the intervals (`start`, `end`; in seconds) in `computed`, `waited_for_peers`, `waited_for_bytes`
            and `in_flight`, and the text form.
    """
    lanes = {what: [_intervals(timeline, what) for timeline in timelines] for what in LANES}
    dense = sum(len(intervals) for lane in lanes.values() for intervals in lane) > MOST_SHAPES
    with drawing():
        figure = Figure(figsize=(9, 1.3 + 0.55 * len(timelines)), layout="constrained")
        axes = figure.subplots()
        for what, lane in lanes.items():
            (top, height), look = LANES[what]
            style = {"facecolor": look["facecolor"], "rasterized": True} if dense else look
            for row, intervals in enumerate(lane):
                spans = [(start * 1e3, (end - start) * 1e3) for start, end in intervals]
                axes.broken_barh(spans, (row + top, height), linewidth=0, hatchcolor=INK, **style)
        axes.set(xlabel="milliseconds from the start of the run", ylim=(len(timelines), 0))
        axes.set_yticks([row + 0.5 for row in range(len(timelines))], [f"rank {t.rank}" for t in timelines])
        axes.tick_params(axis="y", length=0)
        _legend(axes)
        return picture(figure, caption=_caption(timelines), text="\n".join(map(str, timelines)))


def _intervals(timeline: Any, what: str) -> list[tuple[float, float]]:
    return [(interval.start, interval.end) for interval in getattr(timeline, what.replace(" ", "_"))]


def _legend(axes: Axes) -> None:
    handles = [Patch(linewidth=0, hatchcolor=INK, label=what, **look) for what, (_, look) in LANES.items()]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(handles))


def _caption(timelines: Sequence[Any]) -> str:
    waits = {t.rank: 1e3 * sum(end - start for start, end in _intervals(t, "waited for peers")) for t in timelines}
    most, least = max(waits, key=waits.__getitem__), min(waits, key=waits.__getitem__)
    seen = (
        f"Rank {most} waits longest for its peers, {waits[most]:.1f} ms, rank {least} least, {waits[least]:.1f} ms: "
        "who waits least is usually the one that the others wait for."
    )
    overlaps = [timeline.overlap for timeline in timelines if timeline.overlap is not None]
    if not overlaps:
        return f"{seen} Nothing is sent."
    return (
        f"{seen} The narrow bar below shows bytes on their way; where the rank computes above it, they cost no time: "
        f"so it is for {min(overlaps):.0%} to {max(overlaps):.0%} of the bytes that a rank sends."
    )
