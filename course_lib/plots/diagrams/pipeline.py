"""A pipeline's schedule as a chart: each rank's forwards and backwards, and the bubble between them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..canvas import COMPUTE, EARLIER, FORWARD, SHADE, UPDATE, WIDTH, Canvas, percent
from ..picture import Picture

LEFT, HEIGHT = 60, 24
COLOURS = {"forward": (FORWARD, EARLIER), "backward": (COMPUTE, UPDATE)}
"""By pass: the colours of a rank's first part and of its second, of the third and so on in turn."""

Schedules = Sequence[Sequence["Pass"]]
"""The schedule of each rank."""
Pass = tuple[str, int] | tuple[str, int, int]
"""("forward" or "backward", micro-batch), with the number of the part between them where a rank has several parts."""


class Box(NamedTuple):
    """A pass in the chart: its times, with the duration of a forward of all parts of a rank as the unit."""

    start: float
    end: float
    kind: str
    part: int
    micro_batch: int


def plot_schedule(schedules: Schedules | Mapping[str, Schedules], backward: float = 1.0) -> Picture:
    """Return a chart of when each rank of a pipeline computes, if messages take no time.

    Args:
        schedules: the schedule of each rank, such as `[("forward", 0), ("backward", 0)]` or a list of
            `course_lib.parallel.Action`. Part p has rank p % len(schedules). Several of these by their names share one
            time axis; in them, the model is the same, so a part of two takes half the time.
        backward: the duration of a backward, in forwards.

    Raises:
        ValueError: a rank waits for a pass that can never come.

    Example:
        >>> plot_schedule([[("forward", 0), ("backward", 0)]] * 2)
    """
    named = schedules if isinstance(schedules, Mapping) else {"": schedules}
    charts = {name: placed(one, backward) for name, one in named.items()}
    ends = {name: max(box.end for row in rows for box in row) for name, rows in charts.items()}
    several = any(box.part >= len(rows) for rows in charts.values() for row in rows for box in row)
    canvas, scale = Canvas(), (WIDTH - LEFT) / max(ends.values())
    parts = ("", ", second part")[: 1 + several]
    canvas.legend((kind + part, COLOURS[kind][at]) for kind in COLOURS for at, part in enumerate(parts))
    waits, lines = [], []
    for name, rows in charts.items():
        work = sum(box.end - box.start for row in rows for box in row)
        wait = percent(1 - work / ends[name] / len(rows))
        waits.append(wait + f" ({name})" * bool(name))
        if name:
            canvas.title(f"{name} (the ranks wait {wait} of the time)")
            lines.append(name)
        canvas.y += 4
        _draw_ranks(canvas, rows, ends[name], scale)
        lines += [_text(rank, row) for rank, row in enumerate(rows)]
    caption = (
        f"Time goes from left to right. Each box is a micro-batch, with its number. The ranks wait "
        f"{' and '.join(waits)} of the time, if messages take none."
    )
    return canvas.picture(caption, "\n".join(lines))


def _draw_ranks(canvas: Canvas, rows: Sequence[Sequence[Box]], end: float, scale: float) -> None:
    """Draw a row for each rank, and move `canvas.y` below them."""
    for rank, row in enumerate(rows):
        canvas.text(0, canvas.y + 16, f"rank {rank}")
        canvas.rect(LEFT, canvas.y, end * scale, HEIGHT, SHADE)
        for box in row:
            colour = COLOURS[box.kind][box.part // len(rows) % 2]
            width = (box.end - box.start) * scale - 1
            canvas.block(LEFT + box.start * scale, canvas.y, width, HEIGHT, colour, str(box.micro_batch))
        canvas.y += HEIGHT + 4


def placed(schedules: Sequence[Sequence[Pass]], backward: float) -> list[list[Box]]:
    """Return each rank's passes, each as early as its input and the rank allow."""
    ended: dict[tuple[str, int, int] | None, float] = {None: 0.0}
    rows: list[list[Box]] = [[] for _ in schedules]
    queues = [[(one[0], one[1] if len(one) == 3 else rank, one[-1]) for one in s] for rank, s in enumerate(schedules)]
    last = max(part for queue in queues for _, part, _ in queue)
    forward = len(schedules) / (last + 1)
    while any(queues):
        ready = [rank for rank, queue in enumerate(queues) if queue and _input(queue[0], last) in ended]
        if not ready:
            waiting = "; ".join(f"rank {rank}: {queue[0]}" for rank, queue in enumerate(queues) if queue)
            raise ValueError(f"these passes wait for a pass that never comes: {waiting}. Check the order of passes.")
        for rank in ready:
            one = kind, part, micro_batch = queues[rank].pop(0)
            start = max(rows[rank][-1].end if rows[rank] else 0, ended[_input(one, last)])
            ended[one] = start + forward * (backward if kind == "backward" else 1)
            rows[rank].append(Box(start, ended[one], kind, part, micro_batch))
    return rows


def _input(one: tuple[str, int, int], last: int) -> tuple[str, int, int] | None:
    """Return the pass whose result a pass needs; None for a forward of part 0."""
    kind, part, micro_batch = one
    if kind == "forward":
        return ("forward", part - 1, micro_batch) if part else None
    return ("backward", part + 1, micro_batch) if part < last else ("forward", part, micro_batch)


def _text(rank: int, row: Sequence[Box]) -> str:
    return f"rank {rank}: " + ", ".join(f"{box.kind} {box.micro_batch} at {box.start:g}" for box in row)
