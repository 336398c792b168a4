"""The memory of each rank over a run, stacked by category.

The axis counts changes, not seconds: the changes of a training step take a moment, and an import takes seconds.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from ..errors import who
from ..planner import size
from .canvas import CATEGORIES, INK, NOTE, SHADE, SMALL, WIDTH, Canvas, short, text_width, ticks
from .picture import Picture

MOST_PANELS, MOST_PLACES = 8, 400
"""Panels, and positions in a panel. Of the changes that share a position, the highest is drawn."""
LEFT, HEIGHT, ABOVE = 70, 110, 34
"""Pixels to the left of a panel, of the highest peak, and above it for names of phases."""


class Place(NamedTuple):
    """One position of a panel: the number of the change, bytes by category, and the most held since before."""

    number: int
    held: dict[str, int]
    highest: int


def plot_memory(memories: Sequence[Any], titles: Sequence[str] | None = None) -> Picture:
    """Return stacked bytes by category, change by change: a panel for each rank, with its peak and its phases.

    A phase is the time between two marks, and has the name of the second. Ranks with equal memory share a panel.

    Args:
        memories: one for each rank, such as `run.memory`. These attributes are read: `peak_bytes`; `by_category`, bytes
            held at the end; `timeline`, changes with `seconds`, `deltas` (bytes allocated or freed, by the names in
            `CATEGORIES`), `operator`, `line`, and `highest_bytes`, the most held since the change before; `marked`,
            labels with their seconds; `marks`, moments with `by_category` by their label; and `at_peak`, one such
            moment with `holdings`. Eight panels are drawn; the text has all.
        titles: a title for each rank, instead of its number.

    Raises:
        ValueError: the number of titles is not the number of ranks.
    """
    if titles is not None and len(titles) != len(memories):
        raise ValueError(f"plot_memory: {len(titles)} titles for {len(memories)} ranks. Give one title for each rank.")
    panels = folded(memories, titles)
    highest = max(1, *(memory.peak_bytes for memory in memories))
    used = {category for memory in memories for change in memory.timeline for category in change.deltas}
    canvas = Canvas()
    canvas.legend((name, colour) for name, colour in CATEGORIES.items() if name in used)
    for title, ranks in list(panels.items())[:MOST_PANELS]:
        canvas.title(title)
        peak = f"peak {size(memories[ranks[0]].peak_bytes)}"
        canvas.text(12 + 1.1 * text_width(title), canvas.y - 5, peak)  # on the left, where a phone shows it
        _draw_panel(canvas, memories[ranks[0]], highest)
    canvas.y += 12
    canvas.text(WIDTH, canvas.y, "allocations and frees, in order →", "end", **NOTE)
    text = "\n".join(line for title, ranks in panels.items() for line in _lines(title, [memories[r] for r in ranks]))
    return canvas.picture(_caption(memories, panels), text, _followed(memories, panels))


def _followed(memories: Sequence[Any], panels: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return what the cursor shows at each place of each panel that is drawn: bytes, the operator and its line."""
    labels: dict[str, int] = {}
    found = {}
    for title, (rank, *_) in list(panels.items())[:MOST_PANELS]:
        if timeline := memories[rank].timeline:
            shown = ((place.highest, _made_by(timeline[place.number])) for place in places(timeline))
            found[title] = [[held, labels.setdefault(label, len(labels))] for held, label in shown]
    return {"labels": [*labels], "panels": found}


def _made_by(change: Any) -> str:
    """Return the operator of a change, and the learner's line if it is known."""
    return f"{change.operator}, {change.line}: {change.line.source}" if change.line else str(change.operator)


def folded(memories: Sequence[Any], titles: Sequence[str] | None) -> dict[str, list[int]]:
    """Return the ranks of each panel by its title. Ranks share a panel if three digits do not tell them apart."""
    alike: dict[Any, list[int]] = {}
    for rank, memory in enumerate(memories):
        key = titles[rank] if titles else "", size(memory.peak_bytes), *_moments(memory)
        alike.setdefault(key, []).append(rank)
    panels = {}
    for (title, *_), ranks in alike.items():
        named = who(ranks) + (", alike" if len(ranks) > 1 else "")
        alone = titles is not None and titles.count(title) == len(ranks)
        panels[title if alone else f"{title}: {named}" if title else named] = ranks
    return panels


def fullest(memories: Sequence[Any]) -> Any:
    """Return the memory of the rank that held most at once."""
    return max(memories, key=lambda memory: memory.peak_bytes)


def places(timeline: Sequence[Any]) -> list[Place]:
    """Return what to draw of a timeline. Of the changes that share a position in the panel, the highest is drawn."""
    held = dict.fromkeys(CATEGORIES, 0)
    best = {} if timeline else {0: Place(0, held, 0)}
    for number, change in enumerate(timeline):
        held = {category: nbytes + change.deltas.get(category, 0) for category, nbytes in held.items()}
        position = number * MOST_PLACES // max(len(timeline), MOST_PLACES)
        if position not in best or change.highest_bytes > best[position].highest:
            best[position] = Place(number, held, change.highest_bytes)
    return list(best.values())


def _draw_panel(canvas: Canvas, memory: Any, highest: int) -> None:
    """Draw phases, grid, areas and the peak, from back to front, and move `canvas.y` below them."""
    foot = canvas.y + HEIGHT + (ABOVE if len(memory.marked) > 1 else ABOVE / 2)
    across, scale = (WIDTH - LEFT) / max(len(memory.timeline), 1), HEIGHT / highest
    draw_phases(canvas, [(label, LEFT + number * across) for label, number in marked(memory)], foot)
    draw_grid(canvas, highest, foot, HEIGHT)
    drawn = places(memory.timeline)
    xs = [LEFT + place.number * across for place in drawn]
    sums = [list(accumulate(place.held.values(), initial=0)) for place in drawn]
    for at, (category, colour) in reversed([*enumerate(CATEGORIES.items())]):  # a lower layer covers a higher one
        if any(place.held[category] for place in drawn):
            edge = stairs(xs, [foot - total[at + 1] * scale for total in sums])
            canvas.add("path", d=f"{edge}V{short(foot)}H{LEFT}Z", fill=colour)
    edge = stairs(xs, [foot - place.highest * scale for place in drawn])
    canvas.add("path", d=edge, stroke=INK, fill="none", stroke_width=0.8)
    y = foot - memory.peak_bytes * scale
    canvas.line(LEFT, y, WIDTH, y, INK, stroke_dasharray="4 3", stroke_width=0.8)
    canvas.y = foot + 4


def stairs(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Return a path of stairs through the points, up to the right edge of the panel."""
    points = list(zip(xs, ys, strict=True))
    steps = (f"H{short(x)}V{short(y)}" for (_, before), (x, y) in pairwise(points) if y != before)
    return f"M{short(points[0][0])} {short(points[0][1])}{''.join(steps)}H{WIDTH}"


def marked(memory: Any) -> list[tuple[str, int]]:
    """Return the label of each mark, and the number of the first change after it."""
    return [(label, bisect_left(memory.timeline, at, key=attrgetter("seconds"))) for label, at in memory.marked]


def draw_phases(canvas: Canvas, marks: Sequence[tuple[str, float]], foot: float) -> None:
    """Shade every second phase from `canvas.y` to `foot`, and write the names of phases in their areas.

    `marks` are labels with their places in pixels. The time before the first mark has no name: nobody marked its
    beginning.
    """
    phases = [(label, left, right) for (_, left), (label, right) in pairwise(marks)]
    for _, left, right in phases[::2]:
        canvas.rect(left, canvas.y, right - left, foot - canvas.y, SHADE)
    taken: dict[int, list[tuple[float, float]]] = {26: [], 12: []}
    for label, left, right in sorted(phases, key=lambda phase: phase[1] - phase[2]):  # the widest area first
        name = label.removeprefix("after ").removesuffix("()")
        width = text_width(name, 11)
        middle = min((left + right) / 2, WIDTH - width / 2)
        start, end = middle - width / 2 - 3, middle + width / 2 + 3
        # A name is in the first line, that of a narrow area in the second, or where there is room.
        lines = (12, 26) if right - left > 0.9 * width else (26, 12)
        for line in lines if right - left > 0.25 * width else ():
            if all(end <= other or begin <= start for other, begin in taken[line]):
                canvas.text(middle, canvas.y + line, name, "middle", **SMALL)
                taken[line].append((start, end))
                break


def draw_grid(canvas: Canvas, highest: int, foot: float, height: float) -> None:
    """Draw a line with its bytes at each round number up to `highest`, which is `height` pixels above `foot`."""
    for tick in ticks(highest):
        y = foot - tick * height / highest
        canvas.line(LEFT, y, WIDTH, y, stroke_width=0.5)
        canvas.text(LEFT - 6, y + 4, size(tick), "end", **NOTE)


def _caption(memories: Sequence[Any], panels: Mapping[str, Sequence[int]]) -> str:
    most = fullest(memories)
    if most.at_peak is None:
        return "No rank held anything."
    peak, least = size(most.peak_bytes), size(min(memory.peak_bytes for memory in memories))
    parts = parts_of(most.at_peak.by_category)
    name = next(title for title, ranks in panels.items() if memories.index(most) in ranks).removesuffix(", alike")
    if peak != least:
        sentence = f"The highest peak is {peak} ({name}): {parts}. The lowest is {least}."
    elif len(panels) > 1:
        sentence = f"Every rank holds {peak} at its peak. On {name}: {parts}."
    else:
        sentence = f"{'Every' if len(memories) > 1 else 'The'} rank holds {peak} at its peak: {parts}."
    sentence += made_other(most.at_peak)
    if len(panels) > MOST_PANELS:
        sentence += f" The figure shows the first {MOST_PANELS} of {len(panels)} different ranks."
    return sentence


def made_other(peak: Any) -> str:
    """Return a sentence that names most of “other”, if that is the largest category; else nothing."""
    made = [holding for holding in peak.holdings if holding.category == "other"]
    if not made or max(peak.by_category, key=peak.by_category.get) != "other":
        return ""
    most = max(made, key=attrgetter("total_bytes"))
    times, where = f"{most.count} x " * (most.count > 1), f" at {most.line}" if most.line else ""
    return f" Most of “other”: {times}{most.layout}, made by {most.operator}{where}, {size(most.total_bytes)}."


def _lines(title: str, memories: Sequence[Any]) -> list[str]:
    peaks = [memory.peak_bytes for memory in memories]
    peak = " to ".join(f"{nbytes:,}" for nbytes in dict.fromkeys((min(peaks), max(peaks))))
    end, *marks = _moments(memories[0])
    return [f"{title}: peak {peak} bytes; at the end {end}", *marks]


def _moments(memory: Any) -> list[str]:
    """Return what is held at the end, and at each mark, in words."""
    marks = (f"  {label}: {parts_of(mark.by_category)}" for label, mark in memory.marks.items())
    return [parts_of(memory.by_category), *marks]


def parts_of(by_category: Mapping[str, int]) -> str:
    """Return the categories that hold something, with their bytes, in words."""
    return ", ".join(f"{name} {size(held)}" for name, held in by_category.items() if held) or "nothing"
