"""Runs side by side: bars of what each holds."""

from collections.abc import Mapping
from typing import Any

from ..planner import size
from .canvas import CATEGORIES, WIDTH, Canvas, percent, text_width
from .memory import fullest, made_other, parts_of
from .picture import Picture

BAR = 24


def compare_memory(runs: Mapping[str, Any], at: str | None = None) -> Picture:
    """Return a bar for each run, divided by category: its fullest rank, at its peak or at a mark.

    Args:
        runs: by name, such as `{"stage 0": run, "stage 1": other}`.
        at: the label of a mark; the peak by default.

    Raises:
        ValueError: there is no run by name, or one without this mark.
    """
    if not runs or not isinstance(runs, Mapping):
        kind = type(runs).__name__
        raise ValueError(f"compare_memory: no run by name in this {kind}. Give at least one, {{'stage 0': run}}.")
    held = {name: held_by(name, run, at) for name, run in runs.items()}
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
    if at is None and totals[most]:
        caption += made_other(fullest(runs[most].memory).at_peak)
    text = "\n".join(f"{name}: {totals[name]:,} bytes: {parts_of(parts)}" for name, parts in held.items())
    return canvas.picture(caption, text)


def held_by(name: str, run: Any, at: str | None = None) -> Mapping[str, int]:
    """Return what the fullest rank held by category, at its peak or at a mark; nothing if no rank held anything."""
    if at is None:
        peak = fullest(run.memory).at_peak
        return dict(peak.by_category) if peak else {}
    if not all(at in memory.marks for memory in run.memory):
        marks = ", ".join(map(repr, run.memory[0].marks)) or "none"
        raise ValueError(f"compare_memory: {name!r} has no mark {at!r} on some rank. Marks of its rank 0: {marks}.")
    return max((dict(memory.marks[at].by_category) for memory in run.memory), key=lambda parts: sum(parts.values()))


def draw_bars(canvas: Canvas, held: Mapping[str, Mapping[str, int]]) -> None:
    """Draw a bar of categories for each name, and move `canvas.y` below them."""
    left = max(map(text_width, held)) + 90  # the totals stand left of the bars: a phone shows them
    scale = (WIDTH - left) / max(1, *(sum(parts.values()) for parts in held.values()))
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
        canvas.text(left - 8, canvas.y + 16, size(sum(parts.values())), "end", font_weight="bold")
        canvas.y += BAR + 8
