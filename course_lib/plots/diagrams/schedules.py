"""Schedules: buckets under backward, and the times at which units are gathered, used and freed."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..canvas import CATEGORIES, COMPUTE, INK, MOVING, NOTE, SHADE, SMALL, WIDTH, Canvas, cut, percent
from ..picture import Picture

LEFT, BAR, ROW = 84, 20, 32
FILL = CATEGORIES["gradients"]


class Span(NamedTuple):
    """A time span."""

    start: float
    end: float

    def __str__(self) -> str:
        return f"from {self.start:g} to {self.end:g}"


def plot_buckets(buckets: Sequence[Sequence[tuple[str, int]]]) -> Picture:
    """Return gradient buckets on a time line: each fills during backward, then travels for the same time.

    Args:
        buckets: name and number of elements of each gradient of each bucket, in the order of backward.
    """
    gradients = [gradient for bucket in buckets for gradient in bucket]
    fills = _in_turn(sum(numel for _, numel in bucket) for bucket in buckets)
    sent: list[Span] = []
    for fill in fills:
        start = max([fill.end, *(span.end for span in sent[-1:])])
        sent.append(Span(start, start + fill.end - fill.start))
    canvas, end = Canvas(), fills[-1].end
    canvas.legend([("backward computes", COMPUTE), ("bucket fills", FILL), ("bucket travels", MOVING)])
    canvas.y += 6
    scale = (WIDTH - LEFT) / max(end, sent[-1].end)
    _draw_row(canvas, "backward")
    for (name, _), span in zip(gradients, _in_turn(numel for _, numel in gradients), strict=True):
        fits = _draw_span(canvas, span, scale, COMPUTE, name)
    if not fits:  # the last name then goes behind its span, where nothing else is
        canvas.text(LEFT + end * scale + 5, canvas.y + 14, name, **SMALL)
    for number, (fill, travels) in enumerate(zip(fills, sent, strict=True)):
        canvas.y += ROW
        _draw_row(canvas, f"bucket {number}")
        _draw_span(canvas, fill, scale, FILL, "fills")
        _draw_span(canvas, travels, scale, MOVING, "travels")
    canvas.y += ROW + 6
    canvas.line(LEFT + end * scale, 30, LEFT + end * scale, canvas.y - 12, INK, stroke_dasharray="4 3")
    canvas.text(LEFT + end * scale, canvas.y, "backward ends", "middle", **NOTE)
    hidden = sum(max(0.0, min(span.end, end) - span.start) for span in sent) / sum(b - a for a, b in sent)
    caption = (
        f"{len(buckets)} buckets. Backward hides {percent(hidden)} of the time in which they travel. The last bucket "
        "is full only when backward ends, so backward hides nothing of it. Assumed here: a bucket travels as long as "
        "it fills."
    )
    lines = (
        f"bucket {number} ({', '.join(name for name, _ in bucket)}): fills {fill}, travels {travels}"
        for number, (bucket, fill, travels) in enumerate(zip(buckets, fills, sent, strict=True))
    )
    return canvas.picture(caption, "\n".join(lines))


class Use(NamedTuple):
    """One use of a unit: when the rank asks for it, its gather, and its forward or backward. Then the unit is freed."""

    unit: int
    when: str
    asked: float
    gather: Span
    compute: Span


def schedule(numels: Sequence[int], prefetch: int) -> list[Use]:
    """Return each use in order. One gather runs at a time, once the unit `prefetch` + 1 uses earlier has been used.

    No gather of backward begins in forward. Backward takes twice the time of forward.
    """
    order = [(unit, "forward") for unit in range(len(numels))]
    order += [(unit, "backward") for unit, _ in reversed(order)]
    gathers: list[Span] = []
    asked: list[float] = []
    uses: list[Use] = []
    free = 0.0
    for position, (unit, when) in enumerate(order):
        last = len(numels) - 1 if when == "forward" else len(order) - 1
        while len(gathers) <= min(position + prefetch, last):
            start = max([free, *(gather.end for gather in gathers[-1:])])
            gathers.append(Span(start, start + numels[order[len(gathers)][0]]))
            asked.append(free)
        start = max(free, gathers[position].end)
        free = start + numels[unit] * (1 if when == "forward" else 2)
        uses.append(Use(unit, when, asked[position], gathers[position], Span(start, free)))
    return uses


def _in_turn(lengths: Iterable[float]) -> list[Span]:
    return [Span(start, end) for start, end in pairwise([0, *accumulate(lengths)])]


def _draw_row(canvas: Canvas, name: str) -> None:
    canvas.text(0, canvas.y + 14, cut(name, 11))
    canvas.line(LEFT, canvas.y + BAR + 3, WIDTH, canvas.y + BAR + 3, SHADE)


def _draw_span(canvas: Canvas, span: Span, scale: float, colour: str, label: str) -> bool:
    left, width = LEFT + span.start * scale, (span.end - span.start) * scale - 1
    return canvas.block(left, canvas.y, width, BAR, colour, label)
