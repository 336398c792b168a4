"""Curves: numbers over steps, one line for each run. matplotlib draws axes and lines, the canvas the rest."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .canvas import FAINT, INK, MEMBERS, WIDTH, Canvas
from .picture import Picture

HEIGHT = 240
_STAND_INS = {INK: "#1f2328", FAINT: "#636c76"}
"""Colours that matplotlib draws with, in place of those of the theme, which it does not know."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, which is shorter than its outlines
    "svg.hashsalt": "course",  # the same figure has the same ids
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _STAND_INS[INK],
} | dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), _STAND_INS[FAINT])
LOOKS = ((MEMBERS[0], 12.5), (MEMBERS[3], 10.0), (MEMBERS[2], 7.5), (MEMBERS[1], 5.0), (INK, 1.5))
"""Colour and width of the last five lines. Equal lines lie on each other, so each is narrower than the one below it."""


def curve(
    lines: Mapping[str, Sequence[float]],
    x: Sequence[float] | None = None,
    *,
    xlabel: str = "step",
    ylabel: str = "loss",
    log: str = "",
) -> Picture:
    """Return a line for each of `lines`.

    Args:
        lines: numbers by the name of their line.
        x: the place of each number; 1, 2, 3 and so on by default.
        xlabel, ylabel: what the axes show.
        log: the axes with a logarithmic scale: "x", "y" or "xy".

    Raises:
        ValueError: there are no numbers, or a line has more or fewer than the others or than `x`.
    """
    lines = {name: [float(value) for value in values] for name, values in lines.items()}
    xs = [*map(float, range(1, 1 + max(map(len, lines.values()), default=0)) if x is None else x)]
    if not xs or not lines or any(len(values) != len(xs) for values in lines.values()):
        sizes = ", ".join(f"{name!r} has {len(values)}" for name, values in lines.items()) or "no lines"
        raise ValueError(f"curve: {len(xs)} places; {sizes}. Give at least one line, with a number for each place.")
    canvas = Canvas()
    draw_curves(canvas, lines, xs, xlabel, ylabel, log)
    text = "\n".join(f"{name}: {', '.join(f'{value:.4g}' for value in values)}" for name, values in lines.items())
    ends = "; ".join(f"{name}: from {values[0]:.4g} to {values[-1]:.4g}" for name, values in lines.items())
    close = all(max(at) - min(at) <= 1e-4 * max(map(abs, at)) for at in zip(*lines.values(), strict=True))
    same = " All lines lie on each other." if len(lines) > 1 and close else ""
    caption = f"The {ylabel} by {xlabel}, from {xs[0]:g} to {xs[-1]:g}. {ends}.{same}"
    return canvas.picture(caption, f"{xlabel}: {', '.join(f'{at:g}' for at in xs)}\n{text}")


def draw_curves(
    canvas: Canvas, lines: Mapping[str, Sequence[float]], xs: Sequence[float], xlabel: str, ylabel: str, log: str = ""
) -> None:
    """Draw axes and lines, and move `canvas.y` below them."""
    looks = [LOOKS[max(len(LOOKS) - len(lines) + at, 0)] for at in range(len(lines))]
    canvas.legend((name, colour) for name, (colour, _) in zip(lines, looks, strict=True))
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained", facecolor="none")
        axes = figure.subplots()
        axes.set(xlabel=xlabel, ylabel=ylabel, facecolor="none")
        for axis in log:
            axes.set(**{f"{axis}scale": "log"})
            getattr(axes, f"{axis}axis").set_major_formatter("{x:g}")
        if "x" not in log:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=all(at == int(at) for at in xs)))
        axes.grid(axis="y", linewidth=0.5)
        for values, (colour, width) in zip(lines.values(), looks, strict=True):
            axes.plot(xs, values, color=_STAND_INS.get(colour, colour), linewidth=width, solid_capstyle="round")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = re.sub(r"<!--.*?-->|xlink:(?=href)", "", out.getvalue(), flags=re.DOTALL)
    for variable, colour in _STAND_INS.items():
        svg = svg.replace(colour, variable)
    canvas.nest(svg[svg.index("<g ") : svg.rindex("</svg>")], HEIGHT)
