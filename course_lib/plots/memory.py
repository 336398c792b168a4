"""The memory of each rank over a run, stacked by category.

The axis counts changes, not seconds: the changes of a training step take a moment, and an import takes seconds.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Annotation

from .picture import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, Picture, drawing, in_bytes, picture

CATEGORIES: dict[str, dict[str, Any]] = {  # from the bottom up: persistent state, then transient memory
    "parameters": {"facecolor": BLUE},
    "optimizer": {"facecolor": GREEN, "hatch": "----"},
    "gradients": {"facecolor": ORANGE, "hatch": "////"},
    "activations": {"facecolor": PURPLE, "hatch": "xxxx"},
    "communication": {"facecolor": SKY, "hatch": "||||"},
    "other": {"facecolor": GREY, "hatch": "\\\\\\\\"},
}
MOST_RANKS = 8
MOST_PLACES = 400
"""The number of positions in a panel. Of the changes that share a position, the highest is drawn."""
STACK, LINE = 1.05, 0.125
"""Heights in inches: of the highest peak, and of a line of labels above it."""
MOST_LINES = 8
"""Lines of labels in a panel. A mark whose label has no room in them is a dotted line without its label."""

Array = npt.NDArray[np.float64]


def plot_memory(memories: Sequence[Any]) -> Picture:
    """Return stacked bytes by category, change by change: a panel for each rank, with its peak and its marks.

    Args:
        memories: one for each rank, such as `run.memory`. These attributes are read: `peak_bytes`; `by_category`, bytes
            held at the end; `timeline`, changes with `seconds`, `deltas` (bytes allocated or freed, by the names in
            `CATEGORIES`) and `highest_bytes`, the most held since the change before; `marks`, moments with `seconds`
            and `by_category` by their label; and `at_peak`, one such moment. The first eight ranks are drawn, and
            labels as far as there is room; the text form has all.
    """
    shown = memories[:MOST_RANKS]
    highest = max(memory.peak_bytes for memory in memories)
    with drawing():
        figure = Figure(figsize=(9, 1 + 1.7 * len(shown)), layout="constrained")
        panels = figure.subplots(len(shown), sharex=True, sharey=True, squeeze=False)[:, 0]
        labels = []
        for rank, (axes, memory) in enumerate(zip(panels, shown, strict=True)):
            _draw_held(axes, memory.timeline)
            _draw_peak(axes, memory.peak_bytes)
            labels.append(_draw_marks(axes, memory))
            axes.set_ylabel(f"rank {rank}")
        panels[0].yaxis.set_major_formatter(lambda count, _: in_bytes(count))
        panels[-1].set_xlabel("blocks that came or went, in their order")
        handles = [Patch(linewidth=0, hatchcolor=INK, label=name, **look) for name, look in CATEGORIES.items()]
        figure.legend(handles=handles[::-1], loc="outside right upper")
        lines = _spread(figure, labels) + 1  # one line more for the peak
        figure.set_figheight(1 + (STACK + 0.15 + lines * LINE) * len(shown))
        panels[0].set_ylim(0, max(highest, 1) * (1 + lines * LINE / STACK))
        return picture(figure, caption=_caption(memories), text=_text(memories))


def _draw_held(axes: Axes, timeline: Sequence[Any]) -> None:
    numbers, edges, highest = stacked(timeline)
    for look, lower, upper in zip(CATEGORIES.values(), edges[:-1], edges[1:], strict=True):
        if (upper > lower).any():
            axes.fill_between(numbers, lower, upper, step="post", linewidth=0, hatchcolor=INK, **look)
    axes.step(numbers, highest, where="post", color=INK, linewidth=0.6)


def stacked(timeline: Sequence[Any]) -> tuple[Array, Array, Array]:
    """Return what to draw of a timeline. Of the changes that share a position in the panel, the highest is drawn.

    Returns:
        The changes' numbers [drawn]; the edges of the layers in bytes, from the lowest up [categories + 1, drawn]; and
        the most bytes held since the change before [drawn].
    """
    highest = np.array([float(change.highest_bytes) for change in timeline])
    deltas = [[0.0, *(change.deltas.get(name, 0) for name in CATEGORIES)] for change in timeline]
    edges = np.cumsum(np.array(deltas).reshape(-1, len(CATEGORIES) + 1), axis=0).cumsum(axis=1).T
    places = np.array_split(np.arange(len(timeline)), min(len(timeline), MOST_PLACES) or 1)
    drawn = np.array([place[highest[place].argmax()] for place in places if len(place)], dtype=int)
    return drawn.astype(float), edges[:, drawn], highest[drawn]


def _draw_peak(axes: Axes, peak_bytes: int) -> None:
    axes.axhline(peak_bytes, color=INK, linewidth=0.8, linestyle="--")
    place: dict[str, Any] = {"xy": (1, peak_bytes), "xycoords": ("axes fraction", "data"), "ha": "right"}
    axes.annotate(f"peak {in_bytes(peak_bytes)}", xytext=(0, 2), textcoords="offset points", size=8, **place)


def _draw_marks(axes: Axes, memory: Any) -> list[Annotation]:
    """Draw the marks' lines. Return their labels in order of time, all still in the first line."""
    labels = []
    for label, mark in sorted(memory.marks.items(), key=lambda item: item[1].seconds):
        number = bisect(memory.timeline, mark.seconds, key=attrgetter("seconds"))
        axes.axvline(number, color=INK, linewidth=0.8, linestyle=":")
        place: dict[str, Any] = {"xy": (number, 1), "xycoords": ("data", "axes fraction"), "va": "top"}
        labels.append(axes.annotate(label, xytext=(2, 0), textcoords="offset points", size=8, **place))
    return labels


def _spread(figure: Figure, labels: Sequence[Sequence[Annotation]]) -> int:
    """Move each panel's labels into lines without overlaps. Return the number of lines in the fullest panel."""
    figure.draw_without_rendering()  # from here on their widths are known
    used = 0
    for panel in labels:
        lines = lines_apart([tuple(label.get_window_extent().intervalx) for label in panel])
        for label, line in zip(panel, lines, strict=True):
            label.set_visible(line < MOST_LINES)
            label.xyann = (2, -72 * LINE * line)
            used = max(used, min(line + 1, MOST_LINES))
    return used


def lines_apart(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return a line for each span (left, right; in pixels, leftmost first): the first line with room for it."""
    ends: list[float] = []
    lines = []
    for left, right in spans:
        line = next((line for line, end in enumerate(ends) if end + 4 <= left), len(ends))
        ends[line : line + 1] = [right]
        lines.append(line)
    return lines


def _caption(memories: Sequence[Any]) -> str:
    peaks = [memory.peak_bytes for memory in memories]
    highest = max(range(len(peaks)), key=peaks.__getitem__)
    at_peak = memories[highest].at_peak
    if at_peak is None:
        return "No rank held anything."
    most, least, parts = in_bytes(max(peaks)), in_bytes(min(peaks)), _parts(at_peak.by_category)
    if len(peaks) == 1:
        sentence = f"Rank 0 holds {most} at its peak: {parts}."
    elif most == least:  # both rounded to three digits, as in the figure
        sentence = f"Every rank holds {most} at its peak. On rank {highest} that is {parts}."
    else:
        sentence = f"Rank {highest} holds most at once, {most}: {parts}. The lowest peak of a rank is {least}."
    if len(memories) > MOST_RANKS:
        sentence += f" Drawn are ranks 0 to {MOST_RANKS - 1} of {len(memories)}."
    return sentence


def _text(memories: Sequence[Any]) -> str:
    lines = []
    for rank, memory in enumerate(memories):
        lines.append(f"rank {rank}: peak {memory.peak_bytes:,} bytes; at the end {_parts(memory.by_category)}")
        lines += [f"  {label}: {_parts(mark.by_category)}" for label, mark in memory.marks.items()]
    return "\n".join(lines)


def _parts(by_category: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {in_bytes(held)}" for name, held in by_category.items() if held) or "nothing"
