"""Axes on the canvas: two lines with round numbers, and the places of values between them."""

from collections.abc import Callable, Iterable
from math import ceil, floor, isfinite, log10
from typing import NamedTuple

from .canvas import INK, NOTE, Canvas, text_width, ticks

BELOW, ROOM = 40, 0.04  # pixels below axes, for numbers and a label; the share of a scale beyond its values


class Scale(NamedTuple):
    """The places of values, from 0 to 1, and the round numbers to show."""

    place: Callable[[float], float]
    numbers: list[float]


InPixels = Callable[[float, float], tuple[float, float]]
"""The place of a point in pixels, from its values on both axes."""


class Box(NamedTuple):
    """The area between two axes, in pixels."""

    left: float
    top: float
    width: float
    height: float


def scale(values: Iterable[float], *, log: bool = False) -> Scale:
    """Return the scale of `values`; those that are not finite have no place."""
    shown = [value for value in values if isfinite(value)] or [1.0]
    low, high = min(shown), max(shown)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    position: Callable[[float], float] = log10 if log else float
    first, span = position(low), position(high) - position(low)
    if log:  # at most one power of ten: the numbers between powers are shown, too
        factors = range(1, 10) if high < 10 * low else (1,)
        numbers = [factor * 10.0**power for power in range(floor(first), ceil(first + span) + 1) for factor in factors]
        numbers = [number for number in numbers if 0.999 * low <= number <= 1.001 * high]
    else:
        step = max(ticks(high - low, 6)[1], all(value == int(value) for value in shown))  # no half steps of a training
        numbers = [step * times for times in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
    return Scale(lambda value: ROOM + (1 - 2 * ROOM) * (position(value) - first) / span, numbers)


def draw_axes(canvas: Canvas, box: Box, x: Scale, y: Scale, xlabel: str, ylabel: str) -> InPixels:
    """Draw the axes around `box`, and return a function from values to pixels."""

    def at(across: float, up: float) -> tuple[float, float]:
        return box.left + x.place(across) * box.width, box.top + (1 - y.place(up)) * box.height

    foot = box.top + box.height
    for number in y.numbers:
        height = box.top + (1 - y.place(number)) * box.height
        canvas.line(box.left, height, box.left + box.width, height, stroke_width=0.5)
        canvas.text(box.left - 6, height + 4, f"{number:g}", "end", **NOTE)
    for number in x.numbers:
        across = box.left + x.place(number) * box.width
        canvas.line(across, foot, across, foot + 4)
        canvas.text(across, foot + 16, f"{number:g}", "middle", **NOTE)
    canvas.add("path", d=f"M{box.left:.1f} {box.top:.1f}V{foot:.1f}h{box.width:.1f}", stroke=INK, fill="none")
    canvas.text(box.left + box.width / 2, foot + 32, xlabel, "middle", **NOTE)
    if ylabel:
        place = (box.left - 14 - numbers_width(y), box.top + box.height / 2)
        turned = f"rotate(-90 {place[0]:.1f} {place[1]:.1f})"
        canvas.text(*place, ylabel, "middle", **NOTE, transform=turned)
    return at


def numbers_width(axis: Scale) -> float:
    """Return the width of the widest number of an axis, in pixels."""
    return max((text_width(f"{number:g}", 11) for number in axis.numbers), default=0.0)
