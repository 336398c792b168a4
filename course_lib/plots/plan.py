"""Figures of a plan: bytes at each moment of a step, each collective, and the step on its streams.

Drawn without matplotlib, in a few milliseconds, so that it can follow each change of a setting. Colours and hatches are
those of memory.py and picture.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape

from ..planner import AVERAGING, STEP, Hardware, Plan, Span, Timeline, duration, hardware, how, size
from .memory import CATEGORIES
from .picture import INK, PAPER, Picture

WIDTH, LEFT, RIGHT = 760, 175, 80
ACROSS = WIDTH - LEFT - RIGHT
BAR, ROW, GAP, MARGIN = 16, 24, 30, 12
SPACING = 6
"""Between the lines of a hatch."""

WORK = {  # what a span's name begins with, what it is called in the legend, and whose colour it has
    "forward": ("forward", "activations"),
    "backward": ("backward", "other"),
    "optimizer": ("optimizer's step", "optimizer"),
}
MOVED = {"gradients": ("gradients moved", "gradients"), "parameters": ("parameters moved", "parameters")}


def plot_plan(plan: Plan, machine: str | Hardware) -> Picture:
    """Three panels: bytes held, with a line at the device's memory; bytes sent; and a step's timeline.

    Raises:
        ValueError: there is no such hardware, or the ranks do not fit it.
    """
    chosen = hardware(machine)
    timeline = plan.timeline(chosen)
    drawing = Drawing()
    _draw_memory(drawing, plan, chosen)
    _draw_traffic(drawing, plan)
    _draw_step(drawing, timeline, chosen)
    caption = _caption(plan, chosen, timeline.seconds)
    return Picture(svg=drawing.svg(), caption=caption, text=plan.explain(chosen))


@dataclass
class Drawing:
    """SVG that grows downwards: `y` is where the next row goes."""

    y: float = 0
    elements: list[str] = field(default_factory=list)

    def title(self, text: str) -> None:
        self.y += GAP
        self.text(0, text, "font-weight='bold'")
        self.y += 10

    def text(self, x: float, text: str, look: str = "") -> None:
        self.elements.append(f"<text x='{x:.1f}' y='{self.y:.1f}' {look}>{escape(text)}</text>")

    def block(self, x: float, width: float, category: str) -> None:
        """A part of a bar, in the look of `category`, on the row at `y`."""
        look = CATEGORIES[category]
        top, lines = self.y - BAR + 4, _hatch(look.get("hatch", "")[:1], width)
        self.elements.append(
            f"<svg x='{x:.1f}' y='{top:.1f}' width='{max(width, 0.5):.1f}' height='{BAR}'>"
            f"<rect width='100%' height='100%' fill='{look['facecolor']}'/>{lines}</svg>"
        )

    def row(self, label: str, value: str, blocks: Iterable[tuple[float, float, str]]) -> None:
        """A label, blocks as (start, width, category) in parts of the width, and a value behind the last."""
        self.y += ROW
        self.text(LEFT - 8, label, "text-anchor='end'")
        end = 0.0
        for start, width, category in blocks:
            self.block(LEFT + start * ACROSS, width * ACROSS, category)
            end = max(end, start + width)
        self.text(LEFT + end * ACROSS + 5, value)

    def legend(self, entries: Iterable[tuple[str, str]]) -> None:
        """Names, each behind a block of its category."""
        self.y += ROW
        x = float(LEFT)
        for name, category in entries:
            self.block(x, BAR, category)
            self.text(x + BAR + 4, name)
            x += BAR + 16 + 7 * len(name)

    def svg(self) -> str:
        width, height = WIDTH + 2 * MARGIN, f"{self.y + MARGIN:.0f}"
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}px' height='{height}px' "
            f"viewBox='-{MARGIN} 0 {width} {height}' font-size='12px' font-family='sans-serif' fill='{INK}'>"
            f"<rect x='-{MARGIN}' width='100%' height='100%' fill='{PAPER}'/>{''.join(self.elements)}</svg>"
        )


def _hatch(kind: str, width: float) -> str:
    """Lines across a block: a path rather than a pattern, which would need an id, and a page has many figures."""
    steps = range(0, int(width) + BAR, SPACING)
    lines = {
        "": [],
        "-": [f"M0 {y}h{width:.0f}" for y in range(3, BAR, 5)],
        "|": [f"M{x} 0v{BAR}" for x in steps],
        "/": [f"M{x} 0l-{BAR} {BAR}" for x in steps],
        "\\": [f"M{x - BAR} 0l{BAR} {BAR}" for x in steps],
        "x": [f"M{x} 0l-{BAR} {BAR}M{x - BAR} 0l{BAR} {BAR}" for x in steps],
    }[kind]
    return f"<path d='{''.join(lines)}' stroke='{INK}' stroke-width='0.5' fill='none'/>" if lines else ""


# Memory


def _draw_memory(drawing: Drawing, plan: Plan, machine: Hardware) -> None:
    moments = _distinct(plan)
    most = 1.05 * max(plan.peak_bytes, machine.memory_bytes)
    drawing.title("Held by rank 0 on its device")
    drawing.legend((name, name) for name in CATEGORIES if plan.bytes[name])
    drawing.y += ROW
    line, top = LEFT + machine.memory_bytes / most * ACROSS, drawing.y
    drawing.text(line, f"the device has {size(machine.memory_bytes)}", "text-anchor='middle'")
    for moment, held in moments.items():
        drawing.row(moment, size(sum(held.values())), _stacked(held, most))
    if plan.host_bytes:
        drawing.row("in the host's memory", size(plan.host_bytes), [])
    drawing.elements.append(
        f"<path d='M{line:.1f} {top + 4:.1f}V{drawing.y + 8:.1f}' stroke='{INK}' stroke-width='2' "
        "stroke-dasharray='5 3'/>"
    )


def _distinct(plan: Plan) -> dict[str, dict[str, int]]:
    """The moments; "averaging" only where an engine holds something then that it does not hold in the step."""
    moments = dict(plan.moments)
    if all(moments[AVERAGING][category] <= moments[STEP][category] for category in CATEGORIES):
        del moments[AVERAGING]
    return moments


def _stacked(held: dict[str, int], most: float) -> Iterator[tuple[float, float, str]]:
    start = 0.0
    for category in CATEGORIES:
        if held[category]:
            yield start / most, held[category] / most, category
            start += held[category]


# Traffic


def _draw_traffic(drawing: Drawing, plan: Plan) -> None:
    drawing.title(f"Sent by each rank in a step: {size(plan.sent_bytes)}")
    most = 1.15 * max([float(call.sent) for call in plan.collectives], default=1.0)
    for call in plan.collectives:
        sent = float(call.sent)
        drawing.row(f"{call.op}, {call.when}", f"{size(sent)} of {call.what}", [(0, sent / most, call.what)])
    if not plan.collectives:
        drawing.row("one rank", "sends nothing", [])


# The step


def _draw_step(drawing: Drawing, timeline: Timeline, machine: Hardware) -> None:
    drawing.title(f"A step on {machine.name}: {duration(timeline.seconds)}")
    kinds = [_kind(span) for span in timeline.spans]
    drawing.legend(sorted(set(kinds)))
    for stream in dict.fromkeys(span.stream for span in timeline.spans):
        spans = [span for span in timeline.spans if span.stream == stream]
        drawing.row(stream, duration(timeline.busy(stream)), _merged(spans, timeline.seconds))


def _kind(span: Span) -> tuple[str, str]:
    """Return the span's name in the legend and the kind that sets its look."""
    first = span.name.partition(" ")[0]
    return WORK.get(first) or MOVED["gradients" if "gradients" in span.name else "parameters"]


def _merged(spans: Iterable[Span], whole: float) -> Iterator[tuple[float, float, str]]:
    """Blocks for spans; those of a kind with less than half a pixel between them become one."""
    start, end, category = 0.0, 0.0, ""
    for span in spans:
        begins, kind = span.start / whole, _kind(span)[1]
        if kind != category or begins - end > 0.5 / ACROSS:
            if category:
                yield start, end - start, category
            start, category = begins, kind
        end = span.end / whole
    if category:
        yield start, end - start, category


def _caption(plan: Plan, machine: Hardware, seconds: float) -> str:
    return (
        f"{plan.model.name}, {how(plan.settings)}: a rank holds at most {size(plan.peak_bytes)} "
        f"({plan.peak_moment}) of {size(machine.memory_bytes)}, and sends {size(plan.sent_bytes)} in a step, which "
        f"takes {duration(seconds)} on {machine.name}."
    )
