"""What each rank holds, by category, from change to change.

The axis counts changes, not seconds: what matters in a step of training takes a moment, and an import takes seconds.
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

from .picture import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, Picture, drawing, in_bytes, picture

CATEGORIES: dict[str, dict[str, Any]] = {  # from the bottom up: what stays, then what comes and goes
    "parameters": {"facecolor": BLUE},
    "optimizer": {"facecolor": GREEN, "hatch": "----"},
    "gradients": {"facecolor": ORANGE, "hatch": "////"},
    "activations": {"facecolor": PURPLE, "hatch": "xxxx"},
    "communication": {"facecolor": SKY, "hatch": "||||"},
    "other": {"facecolor": GREY, "hatch": "\\\\\\\\"},
}
MOST_RANKS = 8
MOST_PLACES = 400
"""Places that a panel has room for; of the changes that share one, the highest is drawn."""
HEADROOM = 1.35
"""How much higher than its highest peak a panel is: above, three lines of labels find room."""

Array = npt.NDArray[np.float64]


def plot_memory(memories: Sequence[Any]) -> Picture:
    """Stacked bytes by category, change by change, a panel for each rank, with its peak and its marks.

    Args:
        memories: one for each rank, such as `run.memory`. Read are `peak_bytes`; `by_category`, bytes held at the end;
            `timeline`, changes with `seconds`, `deltas` (bytes that came or went, by the names in `CATEGORIES`) and
            `highest_bytes`, the most that was held since the change before; `marks`, moments with `seconds` and
            `by_category` by their label; and `at_peak`, one such moment. The first eight ranks are drawn; the text
            form has all.
    """
    shown = memories[:MOST_RANKS]
    highest = max(memory.peak_bytes for memory in memories)
    with drawing():
        figure = Figure(figsize=(9, 1 + 1.7 * len(shown)), layout="constrained")
        panels = figure.subplots(len(shown), sharex=True, sharey=True, squeeze=False)[:, 0]
        for rank, (axes, memory) in enumerate(zip(panels, shown, strict=True)):
            _draw_held(axes, memory.timeline)
            _draw_labels(axes, memory)
            axes.set(ylabel=f"rank {rank}", ylim=(0, HEADROOM * max(highest, 1)))
        panels[0].yaxis.set_major_formatter(lambda count, _: in_bytes(count))
        panels[-1].set_xlabel("blocks that came or went, in their order")
        handles = [Patch(linewidth=0, hatchcolor=INK, label=name, **look) for name, look in CATEGORIES.items()]
        figure.legend(handles=handles[::-1], loc="outside right upper")
        return picture(figure, caption=_caption(memories), text=_text(memories))


def _draw_held(axes: Axes, timeline: Sequence[Any]) -> None:
    numbers, edges, highest = stacked(timeline)
    for look, lower, upper in zip(CATEGORIES.values(), edges[:-1], edges[1:], strict=True):
        if (upper > lower).any():
            axes.fill_between(numbers, lower, upper, step="post", linewidth=0, hatchcolor=INK, **look)
    axes.step(numbers, highest, where="post", color=INK, linewidth=0.6)


def stacked(timeline: Sequence[Any]) -> tuple[Array, Array, Array]:
    """What to draw of a timeline: of the changes that share a place in the panel, the highest.

    Returns:
        The changes' numbers [drawn]; the edges of the layers in bytes, from the lowest up [categories + 1, drawn];
        and the most that was held since the change before [drawn].
    """
    highest = np.array([float(change.highest_bytes) for change in timeline])
    deltas = [[0.0, *(change.deltas.get(name, 0) for name in CATEGORIES)] for change in timeline]
    edges = np.cumsum(np.array(deltas).reshape(-1, len(CATEGORIES) + 1), axis=0).cumsum(axis=1).T
    places = np.array_split(np.arange(len(timeline)), min(len(timeline), MOST_PLACES) or 1)
    drawn = np.array([place[highest[place].argmax()] for place in places if len(place)], dtype=int)
    return drawn.astype(float), edges[:, drawn], highest[drawn]


def _draw_labels(axes: Axes, memory: Any) -> None:
    small: dict[str, Any] = {"textcoords": "offset points", "size": 8}
    peak = memory.peak_bytes
    axes.axhline(peak, color=INK, linewidth=0.8, linestyle="--")
    axes.annotate(f"peak {in_bytes(peak)}", (1, peak), (0, 2), xycoords=("axes fraction", "data"), ha="right", **small)
    for order, (label, mark) in enumerate(memory.marks.items()):
        number, line = bisect(memory.timeline, mark.seconds, key=attrgetter("seconds")), -9 * (order % 3)
        axes.axvline(number, color=INK, linewidth=0.8, linestyle=":")
        axes.annotate(label, (number, 1), (2, line), xycoords=("data", "axes fraction"), va="top", **small)


def _caption(memories: Sequence[Any]) -> str:
    peaks = [memory.peak_bytes for memory in memories]
    highest = max(range(len(peaks)), key=peaks.__getitem__)
    at_peak = memories[highest].at_peak
    if at_peak is None:
        return "No rank held anything."
    most, least, parts = in_bytes(max(peaks)), in_bytes(min(peaks)), _parts(at_peak.by_category)
    if len(peaks) == 1:
        told = f"Rank 0 holds {most} at its peak: {parts}."
    elif most == least:  # as the figure shows them: to three digits
        told = f"Every rank holds {most} at its peak. On rank {highest} that is {parts}."
    else:
        told = f"Rank {highest} holds most at once, {most}: {parts}. The lowest peak of a rank is {least}."
    if len(memories) > MOST_RANKS:
        told += f" Drawn are ranks 0 to {MOST_RANKS - 1} of {len(memories)}."
    return told


def _text(memories: Sequence[Any]) -> str:
    lines = []
    for rank, memory in enumerate(memories):
        lines.append(f"rank {rank}: peak {memory.peak_bytes:,} bytes; at the end {_parts(memory.by_category)}")
        lines += [f"  {label}: {_parts(mark.by_category)}" for label, mark in memory.marks.items()]
    return "\n".join(lines)


def _parts(by_category: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {in_bytes(held)}" for name, held in by_category.items() if held) or "nothing"
