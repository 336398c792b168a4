"""Curves: numbers over steps, one line for each run."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log10

from .canvas import INK, MEMBERS, NOTE, WIDTH, Canvas, short, ticks
from .picture import Picture

LEFT, HEIGHT = 60, 200
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
    canvas.text(0, canvas.y + 8, ylabel, **NOTE)
    top, foot, across = canvas.y + 14, canvas.y + 14 + HEIGHT, WIDTH - LEFT - 24
    x_of, x_ticks = _axis(xs, "x" in log)
    y_of, y_ticks = _axis([value for values in lines.values() for value in values], "y" in log)
    for tick in y_ticks:
        y = foot - y_of(tick) * HEIGHT
        canvas.line(LEFT, y, WIDTH, y, stroke_width=0.5)
        canvas.text(LEFT - 6, y + 4, f"{tick:g}", "end", **NOTE)
    for tick in x_ticks:
        canvas.text(LEFT + 12 + x_of(tick) * across, foot + 16, f"{tick:g}", "middle", **NOTE)
    for values, (colour, width) in zip(lines.values(), looks, strict=True):
        points = zip(map(x_of, xs), map(y_of, values), strict=True)
        d = "M" + "L".join(f"{short(LEFT + 12 + x * across)} {short(foot - y * HEIGHT)}" for x, y in points)
        round_ends = {"stroke_linejoin": "round", "stroke_linecap": "round"}
        canvas.add("path", d=d, stroke=colour, fill="none", stroke_width=width, **round_ends)
    canvas.line(LEFT, foot, WIDTH, foot, INK)
    canvas.line(LEFT, top, LEFT, foot, INK)
    canvas.y = foot + 32
    canvas.text(WIDTH, canvas.y - 2, xlabel, "end", **NOTE)


def _axis(values: Sequence[float], log: bool) -> tuple[Callable[[float], float], list[float]]:
    """Return the place of a value on an axis for `values`, in parts of the axis, and the axis's ticks."""
    low, high = min(values), max(values)
    if log:
        first, last = floor(log10(low)), max(ceil(log10(high)), floor(log10(low)) + 1)
        return (lambda v: (log10(v) - first) / (last - first)), [10.0**n for n in range(first, last + 1)]
    unit = ([*ticks(high - low, 6), 1.0])[1]
    if all(value == int(value) for value in values):
        unit = max(unit, 1.0)
    first = floor(low / unit + 1e-9)
    count = max(ceil(high / unit - 1e-9) - first, 1)
    return (lambda v: (v / unit - first) / count), [round((first + n) * unit, 9) for n in range(count + 1)]
