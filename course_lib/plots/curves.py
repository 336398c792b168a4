"""Curves: numbers over steps, one line for each run."""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import isfinite
from types import MappingProxyType

from .axes import BELOW, Box, draw_axes, numbers_width, scale
from .canvas import FAINT, INK, MEMBERS, SMALL, WIDTH, Canvas, cut, short, text_width
from .picture import Picture

ROUND = {"stroke_linecap": "round", "stroke_linejoin": "round"}
HEIGHT, APART, LONGEST = 240, 17, 30
"""Pixels of the figure and between two labels, and the most letters of a label."""
LOOKS = ((FAINT, 16.5), (MEMBERS[0], 13.5), (MEMBERS[3], 10.5), (MEMBERS[2], 7.5), (MEMBERS[1], 4.5), (INK, 1.5))
"""Colour and width of the last six lines. Equal lines lie on each other, so each is narrower than the one below it.

A wide line has an outline, because some tints are nearly as dark or as light as a theme's ground.
"""


def curve(
    lines: Mapping[str, Sequence[float]],
    x: Sequence[float] | None = None,
    *,
    xlabel: str = "step",
    ylabel: str = "loss",
    log: str = "",
    marks: Mapping[str, float] | None = None,
) -> Picture:
    """Return a line for each of `lines`.

    Args:
        lines: numbers by the name of their line.
        x: the place of each number; 1, 2, 3 and so on by default.
        xlabel, ylabel: what the axes show.
        log: the axes with a logarithmic scale: "x", "y" or "xy".
        marks: places on the x axis by the name of what happened there.

    Raises:
        ValueError: there are no numbers, or a line has more or fewer than the others or than `x`.
    """
    lines = {name: [float(value) for value in values] for name, values in lines.items()}
    xs = [*map(float, range(1, 1 + max(map(len, lines.values()), default=0)) if x is None else x)]
    if not xs or not lines or any(len(values) != len(xs) for values in lines.values()):
        sizes = ", ".join(f"{name!r} has {len(values)}" for name, values in lines.items()) or "no lines"
        raise ValueError(f"curve: {len(xs)} places; {sizes}. Give at least one line, with a number for each place.")
    canvas = Canvas()
    draw_curves(canvas, lines, xs, xlabel, ylabel, log, marks or {})
    text = "\n".join(f"{name}: {', '.join(f'{value:.4g}' for value in values)}" for name, values in lines.items())
    ends = "; ".join(f"{name}: from {values[0]:.4g} to {values[-1]:.4g}" for name, values in lines.items())
    marked = "".join(f" {name.capitalize()} at {at:g}." for name, at in (marks or {}).items())
    caption = f"The {ylabel} by {xlabel}, from {xs[0]:g} to {xs[-1]:g}. {ends}.{marked}"
    return canvas.picture(caption, f"{xlabel}: {', '.join(f'{at:g}' for at in xs)}\n{text}")


def draw_curves(
    canvas: Canvas, lines: Mapping[str, Sequence[float]], xs: Sequence[float], xlabel: str, ylabel: str,
    log: str = "", marks: Mapping[str, float] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Draw axes and lines, each with its name at its end, and move `canvas.y` below them."""
    names, height = [cut(name, LONGEST) for name in lines], max(HEIGHT, APART * len(lines) + 60)
    looks = [LOOKS[max(len(LOOKS) - len(lines) + at, 0)] for at in range(len(lines))]
    x, y = scale([*xs, *marks.values()], log="x" in log), scale(chain(*lines.values()), log="y" in log)
    left, right = 26 + numbers_width(y), WIDTH - max(map(text_width, names)) - 40  # the names stand behind the axes
    box = Box(left, canvas.y + 14, right - left, height - BELOW - 14)
    at = draw_axes(canvas, box, x, y, xlabel, ylabel)
    paths = []
    for values in lines.values():
        points = [at(where, value) for where, value in zip(xs, values, strict=True) if isfinite(value)]
        paths.append("M" + "L".join(f"{short(across)} {short(down)}" for across, down in points) if points else "")
    for name, where in marks.items():
        across = box.left + x.place(where) * box.width
        canvas.line(across, box.top, across, box.top + box.height, INK, stroke_dasharray="4 3")
        canvas.text(across, box.top - 4, name, "middle", **SMALL)
    for outline in (True, False):  # below all lines, which hide the outlines of narrower ones
        for path, (colour, width) in zip(paths, looks, strict=True):
            if path and not (outline and width == LOOKS[-1][1]):
                stroke, wide = (FAINT, width + 1.5) if outline else (colour, width)
                canvas.add("path", d=path, stroke=stroke, stroke_width=wide, fill="none", **ROUND)
    ends = [at(xs[-1], values[-1]) if isfinite(values[-1]) else None for values in lines.values()]
    feet = spread([end[1] if end else box.top + box.height / 2 for end in ends], APART, canvas.y + height - 40)
    for name, (colour, _), end, foot in zip(names, looks, ends, feet, strict=True):
        if end:
            canvas.line(end[0] + 4, end[1], right + 18, foot)
        canvas.block(right + 20, foot - 6, 12, 12, colour)
        canvas.text(right + 38, foot + 4, name)
    canvas.y += height


def spread(places: Sequence[float], apart: float, most: float) -> list[float]:
    """Return places at least `apart` from each other, near the given ones and none beyond `most`.

    They keep their order, and places that share a pixel the order in which they are given: it is then the same on
    machines that round differently.
    """
    order = sorted(range(len(places)), key=lambda at: round(places[at]))
    moved, free = list(places), apart / 2
    for at in order:
        moved[at] = max(moved[at], free)
        free = moved[at] + apart
    for at in reversed(order):
        moved[at] = min(moved[at], most)
        most = moved[at] - apart
    return moved
