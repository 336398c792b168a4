"""Curves: numbers over steps, one line for each run. matplotlib draws axes and lines, the canvas the rest."""

from collections.abc import Mapping, Sequence
from math import isfinite
from types import MappingProxyType

from ..canvas import FAINT, INK, MEMBERS, WIDTH, Canvas, cut, text_width
from ..picture import Picture
from .axes import STAND_INS, axes, in_pixels

HEIGHT, APART, LONGEST = 240, 17, 30
"""Pixels of the figure and between two labels, and the most letters of a label."""
LARGE = 1e4
"""From here on, a number is written in full, with commas."""
LOOKS = ((MEMBERS[2], 16.5), (FAINT, 13.5), (MEMBERS[3], 10.5), (MEMBERS[0], 7.5), (MEMBERS[1], 4.5), (INK, 1.5))
"""Colour and width of the last six lines. Equal lines lie on each other, so each is narrower than the one below it.

The last four, which are all that most figures need, differ from their neighbours in both themes.
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
    text = "\n".join(f"{name}: {', '.join(map(written, values))}" for name, values in lines.items())
    ends = "; ".join(f"{name}: from {written(values[0])} to {written(values[-1])}" for name, values in lines.items())
    marked = "".join(f" {name.capitalize()} at {at:g}." for name, at in (marks or {}).items())
    caption = f"The {ylabel} by {xlabel}, from {written(xs[0])} to {written(xs[-1])}. {ends}.{marked}"
    return canvas.picture(caption, f"{xlabel}: {', '.join(map(written, xs))}\n{text}")


def written(value: float) -> str:
    """Return a number as a reader expects it: 401,400 instead of 4.014e+05."""
    return f"{value:,.0f}" if LARGE <= abs(value) < 1e15 else f"{value:.4g}"


def draw_curves(
    canvas: Canvas, lines: Mapping[str, Sequence[float]], xs: Sequence[float], xlabel: str, ylabel: str,
    log: str = "", marks: Mapping[str, float] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Draw axes and lines, each with its name at its end, and move `canvas.y` below them."""
    names, height = [cut(name, LONGEST) for name in lines], max(HEIGHT, APART * len(lines) + 60)
    looks = [LOOKS[max(len(LOOKS) - len(lines) + at, 0)] for at in range(len(lines))]
    across = WIDTH - max(map(text_width, names)) - 40  # the names stand behind the axes
    with axes(canvas, height, width=across) as (plot,):
        plot.set(xlabel=xlabel, ylabel=ylabel)
        for axis, shown in (("x", xs), ("y", [value for values in lines.values() for value in values])):
            drawn = getattr(plot, f"{axis}axis")
            if axis in log:
                plot.set(**{f"{axis}scale": "log"})
                drawn.set_major_formatter(lambda value, _: written(value))
                if max(shown) < 10 * min(shown):  # at most one power of ten: the numbers between them are labelled, too
                    drawn.set_minor_formatter(lambda value, _: written(value))
            elif max(shown) >= LARGE:
                drawn.set_major_formatter("{x:,.0f}")
        if "x" not in log:
            from matplotlib.ticker import MaxNLocator

            plot.xaxis.set_major_locator(MaxNLocator(8, integer=all(at == int(at) for at in xs)))
        plot.grid(axis="y", linewidth=0.5)
        for values, (colour, width) in zip(lines.values(), looks, strict=True):
            if width > LOOKS[-1][1]:  # below all lines, which hide the outlines of narrower ones
                plot.plot(xs, values, color=STAND_INS[FAINT], linewidth=width + 1.5, solid_capstyle="round", zorder=1.9)
            plot.plot(xs, values, color=STAND_INS.get(colour, colour), linewidth=width, solid_capstyle="round")
        for name, at in marks.items():
            plot.axvline(at, color=STAND_INS[INK], linewidth=1, linestyle="--", zorder=0)
            plot.text(at, 1, name, transform=plot.get_xaxis_transform(), ha="center", color=STAND_INS[INK])
        plot.figure.canvas.figure.draw_without_rendering()  # which gives the lines their places
        ends = [in_pixels(plot, xs[-1], values[-1]) for values in lines.values()]
        feet = spread([y if isfinite(y) else height / 2 for _, y in ends], APART, height - 40)
        for name, (colour, _), (x, y), foot in zip(names, looks, ends, feet, strict=True):
            if isfinite(y):
                canvas.line(x + 4, canvas.y + y, across + 18, canvas.y + foot)
            canvas.block(across + 20, canvas.y + foot - 6, 12, 12, colour)
            canvas.text(across + 38, canvas.y + foot + 4, name)


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
