"""A chart of each rank's time: computing, waiting, and calls whose bytes move.

What to see is the share of the bytes that moved while a rank computed: a bar for each rank says it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ..planner import duration
from .canvas import COMPUTE, MOVING, NOTE, SMALL, STALLED, WAITING, WIDTH, Canvas, percent, text_width, ticks
from .picture import Picture

LEFT = 60
STATES = {"computed": COMPUTE, "waited for peers": WAITING, "waited for bytes": STALLED}
"""The activities of a rank, with their colours."""
OF_A_STEP = "The rows show one step; the bars and these numbers are of the whole run."


def plot_timeline(timelines: Sequence[Any], between: tuple[float, float] | None = None) -> Picture:
    """Return, for each rank, when it computed and when it waited, and below that its calls while their bytes moved.

    Below is a bar for each rank: the share of its bytes that was hidden, because they moved while the rank computed.

    Args:
        timelines: one for each rank, such as `run.timeline`. These attributes are read: `rank`, `start`, `end`,
            `overlap`, the intervals (`start`, `end`; in seconds) in `computed`, `waited_for_peers`, `waited_for_bytes`
            and `in_flight`, the `call.op` of those in flight, and the text form.
        between: start and end of the part to draw, in seconds; the whole run by default. The bars are of the whole run.
    """
    start, end = between or (0.0, max(timeline.end for timeline in timelines))
    canvas = Canvas()
    canvas.legend([*STATES.items(), ("bytes in flight", MOVING)])
    canvas.y += 4
    scale = (WIDTH - LEFT) / (end - start or 1)
    for timeline in timelines:
        _draw_rank(canvas, timeline, start, end, scale)
    for tick in ticks(1e3 * (end - start), 8):
        x = LEFT + tick * scale / 1e3
        canvas.line(x, canvas.y, x, canvas.y + 4)
        canvas.text(x, canvas.y + 16, f"{tick:g}", "middle", **NOTE)
    canvas.y += 30
    canvas.text(WIDTH, canvas.y, f"milliseconds from the start of the {'step' if between else 'run'}", "end", **NOTE)
    shares = {f"rank {t.rank}": t.overlap for t in timelines if t.overlap is not None}
    if shares:
        in_all = " in the whole run" if between else ""
        canvas.title(f"Bytes that each rank sent{in_all}: hidden behind computing, or exposed")
    for name, hidden in shares.items():
        canvas.text(0, canvas.y + 17, name)
        x, width = LEFT, hidden * (WIDTH - LEFT)
        parts = ((width, COMPUTE, "hidden", hidden), (WIDTH - LEFT - width, STALLED, "exposed", 1 - hidden))
        for across, colour, word, share in parts:
            if across:
                canvas.block(x, canvas.y + 2, across - 1, 20, colour, f"{percent(share)} {word}")
            x += across
        canvas.y += 26
    return canvas.picture(_caption(timelines, OF_A_STEP if between else ""), "\n".join(map(str, timelines)))


def _draw_rank(canvas: Canvas, timeline: Any, since: float, until: float, scale: float) -> None:
    canvas.text(0, canvas.y + 20, f"rank {timeline.rank}")
    free, last = 0.0, ""
    for state, colour in (*STATES.items(), ("in_flight", MOVING)):
        top, height = (30, 10) if state == "in_flight" else (4, 24)
        for start, end, ops in merged(getattr(timeline, state.replace(" ", "_")), 0.5 / scale):
            if end <= since or until <= start:
                continue
            left, right = (LEFT + (max(since, min(until, at)) - since) * scale for at in (start, end))
            (canvas.block if height < 20 else canvas.rect)(left, canvas.y + top, right - left, height, colour)
            label = ops.pop() if len(ops) == 1 and state == "in_flight" else ""
            x = min(left, WIDTH - text_width(label, 11))
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


def _caption(timelines: Sequence[Any], about: str) -> str:
    sentences = [about] if about else []
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
