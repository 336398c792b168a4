"""A chart of each rank's time: computing, waiting, and calls whose bytes move.

What to see is the share of the bytes that moved while a rank computed: a number and a colour say it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ..planner import duration
from .canvas import COMPUTE, MOVING, NOTE, SMALL, WAITING, WIDTH, Canvas, percent, text_width, ticks
from .picture import Picture

LEFT = 92
STATES = {"computed": COMPUTE, "waited for peers": WAITING, "waited for bytes": MOVING}
"""The activities of a rank, with their colours."""
FLIGHTS = {"bytes in flight, hidden": COMPUTE, "not hidden": MOVING}
"""Bytes in flight have the colour of what the rank did meanwhile."""


def plot_timeline(timelines: Sequence[Any]) -> Picture:
    """Return, for each rank, when it computed and when it waited, and below that its calls while their bytes moved.

    Next to its calls stands the share of the bytes that moved while the rank computed.

    Args:
        timelines: one for each rank, such as `run.timeline`. These attributes are read: `rank`, `start`, `end`,
            `overlap`, the intervals (`start`, `end`; in seconds) in `computed`, `waited_for_peers`, `waited_for_bytes`
            and `in_flight`, the `call.op` of those in flight, and the text form.
    """
    canvas = Canvas()
    canvas.legend([*STATES.items(), *FLIGHTS.items()], narrow=tuple(FLIGHTS))
    canvas.y += 4
    end = max(timeline.end for timeline in timelines)
    scale = (WIDTH - LEFT) / (end or 1)
    for timeline in timelines:
        _draw_rank(canvas, timeline, scale)
    for tick in ticks(1e3 * end, 8):
        x = LEFT + tick * scale / 1e3
        canvas.line(x, canvas.y, x, canvas.y + 4)
        canvas.text(x, canvas.y + 16, f"{tick:g}", "middle", **NOTE)
    canvas.y += 30
    canvas.text(WIDTH, canvas.y, "milliseconds from the start of the run", "end", **NOTE)
    return canvas.picture(_caption(timelines), "\n".join(map(str, timelines)))


def _draw_rank(canvas: Canvas, timeline: Any, scale: float) -> None:
    canvas.text(0, canvas.y + 20, f"rank {timeline.rank}")
    if timeline.overlap is not None:
        canvas.text(0, canvas.y + 40, f"{percent(timeline.overlap)} hidden", font_weight="bold", **SMALL)
    spans = {state: merged(getattr(timeline, state.replace(" ", "_")), 0.5 / scale) for state in STATES}
    for state, colour in STATES.items():
        for start, end, _ in spans[state]:
            canvas.rect(LEFT + start * scale, canvas.y + 4, (end - start) * scale, 24, colour)
    hidden, exposed = FLIGHTS.values()
    free, last = 0.0, ""
    for start, end, ops in merged(timeline.in_flight, 0.5 / scale):
        canvas.rect(LEFT + start * scale, canvas.y + 30, (end - start) * scale, 10, exposed)
        for since, until in ((max(start, a), min(end, b)) for a, b, _ in spans["computed"] if a < end and start < b):
            canvas.rect(LEFT + since * scale, canvas.y + 30, (until - since) * scale, 10, hidden)
        label = ops.pop() if len(ops) == 1 else ""
        x = min(LEFT + start * scale, WIDTH - text_width(label, 11))
        if label not in ("", last) and x >= free:  # calls of one name in a row are named once
            canvas.text(x, canvas.y + 52, label, **SMALL)
            free = x + text_width(label, 11) + 8
        last = label
    canvas.y += 60


def merged(intervals: Iterable[Any], gap: float) -> list[tuple[float, float, set[str]]]:
    """Return start, end and calls of intervals. Intervals with less than `gap` seconds between them become one."""
    spans: list[tuple[float, float, set[str]]] = []
    for interval in intervals:
        ops = {interval.call.op} if hasattr(interval, "call") else set()
        start, end = interval.start, interval.end
        if spans and start - spans[-1][1] <= gap:
            start, last, before = spans.pop()
            end, ops = max(last, end), before | ops
        spans.append((start, end, ops))
    return spans


def _caption(timelines: Sequence[Any]) -> str:
    sentences = []
    waits = {t.rank: sum(part.end - part.start for part in t.waited_for_peers) for t in timelines}
    most, least = max(waits, key=waits.__getitem__), min(waits, key=waits.__getitem__)
    if waits[most] > waits[least]:
        sentences.append(
            f"Rank {most} waited longest for the others ({duration(waits[most])}), rank {least} least "
            f"({duration(waits[least])}). The rank that waits least is usually the slow one."
        )
    overlaps = [timeline.overlap for timeline in timelines if timeline.overlap is not None]
    low, high = percent(min(overlaps, default=0)), percent(max(overlaps, default=0))
    if not overlaps:
        sentences.append("No rank sent anything.")
    elif high == "0 %":
        sentences.append("No bytes moved while a rank was computing.")
    else:
        share = low if low == high else f"Depending on the rank, {low} to {high}"
        sentences.append(f"{share} of the bytes moved while the rank was computing.")
    return " ".join(sentences)
