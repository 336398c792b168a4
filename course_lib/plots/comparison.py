"""Runs side by side: bars of what each holds, and two runs on one axis."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from ..planner import size
from .canvas import CATEGORIES, INK, MEMBERS, NOTE, ROW, WIDTH, Canvas, percent, short, text_width
from .memory import ABOVE, LEFT, draw_grid, draw_phases, fullest, marked, parts_of, places, stairs
from .picture import Picture

BAR, HEIGHT = 24, 150
LOOKS = (
    {"fill": MEMBERS[1], "fill_opacity": "0.6", "stroke": MEMBERS[1]},
    {"fill": "none", "stroke": INK, "stroke_width": "1.5"},
)


def compare_memory(runs: Mapping[str, Any], at: str | None = None) -> Picture:
    """Return a bar for each run, divided by category: its fullest rank, at its peak or at a mark.

    Args:
        runs: by name, such as `{"stage 0": run, "stage 1": other}`.
        at: the label of a mark; the peak by default.

    Raises:
        ValueError: there is no run, or one without this mark.
    """
    if not runs:
        raise ValueError("compare_memory({}): there is no run. Give at least one, {'stage 0': run}.")
    held = {name: _held(name, run, at) for name, run in runs.items()}
    canvas = Canvas()
    draw_bars(canvas, held)
    totals = {name: sum(parts.values()) for name, parts in held.items()}
    first, least, most = next(iter(totals)), min(totals, key=totals.__getitem__), max(totals, key=totals.__getitem__)
    where = f"at the mark {at!r}" if at else "at its peak"
    caption = f"The fullest rank of each run {where}. {first}: {size(totals[first])}."
    what, other = ("least", least) if totals[least] < totals[first] else ("most", most)
    if totals[other] != totals[first]:
        part = percent(totals[other] / max(totals[first], 1))
        caption += f" The {what} is {other}: {size(totals[other])}, {part} of {size(totals[first])}."
    text = "\n".join(f"{name}: {totals[name]:,} bytes: {parts_of(parts)}" for name, parts in held.items())
    return canvas.picture(caption, text)


def _held(name: str, run: Any, at: str | None) -> Mapping[str, int]:
    if at is None:
        peak = fullest(run.memory).at_peak
        return dict(peak.by_category) if peak else {}
    if not all(at in memory.marks for memory in run.memory):
        marks = ", ".join(map(repr, run.memory[0].marks)) or "none"
        raise ValueError(f"compare_memory: {name!r} has no mark {at!r} on some rank. Marks of its rank 0: {marks}.")
    return max((dict(memory.marks[at].by_category) for memory in run.memory), key=lambda parts: sum(parts.values()))


def draw_bars(canvas: Canvas, held: Mapping[str, Mapping[str, int]]) -> None:
    """Draw a bar of categories for each name, and move `canvas.y` below them."""
    left = max(map(text_width, held)) + 10
    scale = (WIDTH - left - 70) / max(1, *(sum(parts.values()) for parts in held.values()))
    used = [name for name in CATEGORIES if any(parts.get(name) for parts in held.values())]
    canvas.legend((name, CATEGORIES[name]) for name in used)
    canvas.y += 6
    for name, parts in held.items():
        x = left
        canvas.text(0, canvas.y + 16, name)
        for category in used:
            if width := parts.get(category, 0) * scale:
                canvas.block(x, canvas.y, width - 1, BAR, CATEGORIES[category], size(parts[category]))
                x += width
        canvas.text(x + 5, canvas.y + 16, size(sum(parts.values())), font_weight="bold")
        canvas.y += BAR + 8


def compare(a: Any, b: Any, titles: tuple[str, str] = ("first", "second")) -> Picture:
    """Return the memory of two runs on one axis: the fullest rank of each. Marks of both stand at the same place.

    Args:
        a, b: runs.
        titles: their names.
    """
    memories = [fullest(a.memory), fullest(b.memory)]
    highest = max(1, *(memory.peak_bytes for memory in memories))
    marks = shared_marks(*memories)
    edges = [[0, *(dict(marked(memory))[label] for label in marks), len(memory.timeline)] for memory in memories]
    widths = [max(1, *(right - left for left, right in spans)) for spans in zip(*map(pairwise, edges), strict=True)]
    borders = [0, *accumulate(widths)]
    canvas = Canvas()
    for title, x, look in zip(titles, (0, 34 + text_width(titles[0])), LOOKS, strict=True):
        canvas.rect(x, 11, 12, 12, **look)
        canvas.text(x + 18, 21, title)
    canvas.y += ROW
    scale, foot = (WIDTH - LEFT) / borders[-1], canvas.y + ABOVE + HEIGHT
    draw_phases(canvas, [(label, LEFT + at * scale) for label, at in zip(marks, borders[1:], strict=False)], foot)
    draw_grid(canvas, highest, foot, HEIGHT)
    for memory, numbers, look in zip(memories, edges, LOOKS, strict=True):
        drawn = places(memory.timeline)
        xs = [LEFT + scale * _aligned(place.number, numbers, borders) for place in drawn]
        edge = stairs(xs, [foot - place.highest * HEIGHT / highest for place in drawn])
        canvas.add("path", d=f"{edge}V{short(foot)}H{LEFT}Z", **look)
    canvas.y = foot + 16
    canvas.text(WIDTH, canvas.y, "allocations and frees, in order →", "end", **NOTE)
    named = sorted(zip((memory.peak_bytes for memory in memories), titles, strict=True))
    (low, lower), (high, higher) = named
    caption = f"The fullest rank of each run. Its peak is {size(high)} in {higher!r} and {size(low)} in {lower!r}."
    held = {"peak": [memory.peak_bytes for memory in memories]}
    held |= {label: [sum(memory.marks[label].by_category.values()) for memory in memories] for label in marks}
    text = "\n".join(f"{label}: {titles[0]} {one:,} bytes, {titles[1]} {two:,}" for label, (one, two) in held.items())
    return canvas.picture(caption, text)


def shared_marks(a: Any, b: Any) -> list[str]:
    """Return the labels of the marks that both have, by their last use; none, if their orders differ."""
    ours, theirs = ([label for label in _last(one) if label in other.marks] for one, other in ((a, b), (b, a)))
    return ours if ours == theirs else []


def _last(memory: Any) -> list[str]:
    """Return the labels of marks, each at its last use."""
    return list(dict.fromkeys(label for label, _ in reversed(memory.marked)))[::-1]


def _aligned(number: int, numbers: Sequence[int], borders: Sequence[int]) -> float:
    """Return the place of a change. Change `numbers[i]` of this run stands at `borders[i]`, and others in between."""
    at = min(bisect(numbers, number), len(numbers) - 1) - 1
    start, stop = numbers[at : at + 2]
    return borders[at] + (number - start) * (borders[at + 1] - borders[at]) / max(stop - start, 1)
