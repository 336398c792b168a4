"""Figures of a plan: bytes at each moment of a step, each collective, and the step on its streams."""

from collections.abc import Iterable
from itertools import accumulate

from ..planner import AVERAGING, STEP, Hardware, Plan, Span, Timeline, duration, hardware, how, size
from .canvas import CATEGORIES, COMPUTE, EARLIER, FETCHING, FORWARD, INK, MOVING, SHADE, UPDATE, WAITING, WIDTH, Canvas
from .picture import Picture
from .timeline import merged

LEFT, RIGHT, BAR, ROW = 175, 80, 16, 24
ACROSS = WIDTH - LEFT - RIGHT

WORK = {  # what a span's name begins with, what it is called in the legend, and its colour
    "earlier": ("earlier micro-batches", EARLIER),
    "forward": ("forward", FORWARD),
    "backward": ("backward", COMPUTE),
    "optimizer": ("optimizer's step", UPDATE),
}
MOVED = {
    "activations": ("activations moved", FETCHING),
    "wait": ("waits", SHADE),
    "gradients": ("gradients moved", WAITING),
    "parameters": ("parameters moved", MOVING),
}
Block = tuple[float, float, str]
"""Start and width, in parts of the row, and colour."""


def plot_plan(plan: Plan, machine: str | Hardware) -> Picture:
    """Return three panels: bytes held, with a line at the device's memory; bytes sent; and a step's timeline.

    Raises:
        ValueError: there is no such hardware, or the ranks do not fit it.
    """
    chosen = hardware(machine)
    timeline = plan.timeline(chosen)
    canvas = Canvas()
    _draw_memory(canvas, plan, chosen)
    _draw_traffic(canvas, plan)
    _draw_step(canvas, timeline, chosen)
    return canvas.picture(_caption(plan, chosen, timeline.seconds), plan.explain(chosen))


def _row(canvas: Canvas, label: str, value: str, blocks: Iterable[Block]) -> None:
    """Draw a label, blocks, and a value behind the last."""
    canvas.y += ROW
    canvas.text(LEFT - 8, canvas.y, label, "end")
    end = 0.0
    for start, width, colour in blocks:
        canvas.block(LEFT + start * ACROSS, canvas.y - BAR + 4, width * ACROSS, BAR, colour)
        end = max(end, start + width)
    canvas.text(LEFT + end * ACROSS + 5, canvas.y, value)


def _draw_memory(canvas: Canvas, plan: Plan, machine: Hardware) -> None:
    moments = _distinct(plan)
    most = 1.05 * max(plan.peak_bytes, machine.memory_bytes)
    canvas.title("Held by rank 0 on its device")
    canvas.legend(((name, colour) for name, colour in CATEGORIES.items() if plan.bytes[name]), LEFT)
    canvas.y += ROW - 4
    line, top = LEFT + machine.memory_bytes / most * ACROSS, canvas.y
    canvas.text(line, top, f"the device has {size(machine.memory_bytes)}", "middle")
    for moment, held in moments.items():
        starts = accumulate((held[category] for category in CATEGORIES), initial=0)
        blocks = [
            (at / most, held[kind] / most, CATEGORIES[kind]) for kind, at in zip(CATEGORIES, starts, strict=False)
        ]
        _row(canvas, moment, size(sum(held.values())), [block for block in blocks if block[1]])
    if plan.host_bytes:
        _row(canvas, "in the host's memory", size(plan.host_bytes), [])
    canvas.line(line, top + 4, line, canvas.y + 8, INK, stroke_width=2, stroke_dasharray="5 3")


def _distinct(plan: Plan) -> dict[str, dict[str, int]]:
    """Return the moments; "averaging" only if an engine then holds something that it does not hold in the step."""
    moments = dict(plan.moments)
    if all(moments[AVERAGING][category] <= moments[STEP][category] for category in CATEGORIES):
        del moments[AVERAGING]
    return moments


def _draw_traffic(canvas: Canvas, plan: Plan) -> None:
    canvas.title(f"Sent by each rank in a step: {size(plan.sent_bytes)}")
    most = 1.15 * max([float(call.sent) for call in plan.collectives], default=1.0)
    for call in plan.collectives:
        sent = float(call.sent)
        block = 0, sent / most, CATEGORIES[call.what]
        _row(canvas, f"{call.op}, {call.when}", f"{size(sent)} of {call.what}", [block])
    if not plan.collectives:
        _row(canvas, "one rank", "sends nothing", [])


def _draw_step(canvas: Canvas, timeline: Timeline, machine: Hardware) -> None:
    canvas.title(f"A step on {machine.name}: {duration(timeline.seconds)}")
    kinds = dict.fromkeys(map(_kind, timeline.spans))
    canvas.legend(kinds, LEFT)
    for stream in dict.fromkeys(span.stream for span in timeline.spans):
        blocks: list[Block] = []
        for kind in kinds:
            spans = (span for span in timeline.spans if span.stream == stream and _kind(span) == kind)
            near = merged(spans, timeline.seconds / ACROSS / 2)
            blocks += [(start / timeline.seconds, (end - start) / timeline.seconds, kind[1]) for start, end, _ in near]
        _row(canvas, stream, duration(timeline.busy(stream)), blocks)


def _kind(span: Span) -> tuple[str, str]:
    """Return the span's name in the legend, and its colour."""
    first = span.name.partition(" ")[0]
    return WORK.get(first) or MOVED[next((what for what in MOVED if what in span.name), "parameters")]


def _caption(plan: Plan, machine: Hardware, seconds: float) -> str:
    return (
        f"{plan.model.name}, {how(plan.settings)}: a rank holds at most {size(plan.peak_bytes)} "
        f"({plan.peak_moment}) of {size(machine.memory_bytes)}, and sends {size(plan.sent_bytes)} in a step, which "
        f"takes {duration(seconds)} on {machine.name}."
    )
