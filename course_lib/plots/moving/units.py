"""ZeRO-3 while a step goes on: units that are gathered, used and freed, and the bytes that a rank holds meanwhile."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from ...planner import size
from ..canvas import CATEGORIES, COMPUTE, FORWARD, MOVING, percent
from ..diagrams.schedules import Use, schedule
from .figure import Control, Cursor, Moving
from .shapes import Shape, filled, legend, text

LOOKS = {"shard": "#9CC7E3", "gather": MOVING, "forward": FORWARD, "backward": COMPUTE}
TOP, ROW, BAR, SUM = 62, 46, 36, 84
AHEAD = (0, 1, 2)


def move_units(units: Iterable[tuple[str, int]], world_size: int) -> Moving:
    """Return the units of stage 3 over a step, with the parameters that a rank holds, and a cursor to play it.

    A unit is gathered in the time that its forward takes; its backward takes twice as long.

    Args:
        units: name and number of fp32 elements of each unit, in the order of forward.
        world_size: the number of ranks that share the units.
    """
    names, numels = zip(*units, strict=True)
    uses = {ahead: schedule(numels, ahead) for ahead in AHEAD}
    end, whole, foot = uses[0][-1].compute.end, 4 * sum(numels), TOP + len(names) * ROW + 24
    held = {ahead: held_bytes(numels, each, world_size) for ahead, each in uses.items()}
    peaks = {ahead: max(nbytes for _, nbytes in each) for ahead, each in held.items()}

    def rows(ahead: int) -> list[Shape]:
        shapes, done = legend({"shard": "its own shard", "gather": "gathered", "forward": "forward", "backward": "backward"}, 12, 0.27), uses[ahead][-1].compute.end / end
        for number, name in enumerate(names):
            y = TOP + number * ROW
            shapes.append(text(f"row {y}", -1, y + BAR / 2 + 4, "title", name))
            shapes += _breaths(f"unit {number}", y, [use for use in uses[ahead] if use.unit == number], end, done, world_size)
        shapes += [text(f"row {foot}", -1, foot + 14, "title", "held"), text("peak", -1, foot + 32, "note", f"≤ {size(peaks[ahead])}")]
        edges = [*held[ahead], (uses[ahead][-1].compute.end, 0)]
        for number, ((start, nbytes), (stop, _)) in enumerate(pairwise(edges)):
            level = nbytes / whole
            shapes.append(Shape(f"held {number}", start / end, foot, (stop - start) / end, SUM, "parameters", "", size(nbytes), level, level))
        return [*shapes, Shape("whole", 0, foot, done, SUM, "ghost"), Shape("end", done, TOP - 8, 0.002, foot + SUM - TOP + 8, "line")]

    def caption(ahead: int) -> str:
        computes = sum(use.compute.end - use.compute.start for use in uses[ahead])
        return (
            f"prefetch={ahead}: computing waits {percent(1 - computes / uses[ahead][-1].compute.end)} of the time, and a "
            f"rank holds at most {size(peaks[ahead])} of the {size(whole)} of parameters."
        )

    lines = [
        f"prefetch={ahead}, {names[use.unit]}, {use.when}: gather {use.gather}, computes {use.compute}, then freed"
        for ahead in AHEAD for use in uses[ahead]
    ]  # fmt: skip
    return Moving(
        title="ZeRO-3: each unit is gathered, used and freed",
        controls={"ahead": Control(label="prefetch", values={str(ahead): ahead for ahead in AHEAD})},
        layers=[(["ahead"], rows)],
        caption=(["ahead"], caption),
        looks=filled(LOOKS | {"parameters": CATEGORIES["parameters"]}),
        text="\n".join(lines),
        height=foot + SUM + 4,
        left=82,
        right=76,
        cursor=Cursor(label="Time", rows={}, steps=120),
    )


def _breaths(key: str, y: float, uses: Sequence[Use], end: float, done: float, world_size: int) -> list[Shape]:
    """Return a row: the shard between uses, a slope while the other shards arrive, a whole box while it computes."""
    shapes, at, least = [], 0.0, 1 / world_size

    def add(until: float, look: str, note: str, start: float, stop: float, label: str = "") -> None:
        nonlocal at
        if until > at + 1e-9:
            shapes.append(Shape(f"{key} {note} {len(shapes)}", at, y, until - at, BAR, look, label, note, start, stop))
            at = until

    for use in uses:
        add(use.gather.start / end, "shard", "shard", least, least)
        add(use.gather.end / end, "gather", "arrives", least, 1)
        add(use.compute.start / end, "shard", "whole", 1, 1)
        add(use.compute.end / end, use.when, use.when, 1, 1, use.when)
    add(done, "shard", "shard", least, least)
    return shapes


def held_bytes(numels: Sequence[int], uses: Sequence[Use], world_size: int) -> list[tuple[float, int]]:
    """Return the bytes of parameters that a rank holds, from each time at which they change, in fp32.

    A rank always holds its shards; a unit has memory for all of it from the start of its gather until it is freed.
    """
    shards = sum(-(-numel // world_size) for numel in numels)
    times = sorted({0.0, *(use.gather.start for use in uses), *(use.compute.end for use in uses[:-1])})
    return [
        (at, 4 * (shards + sum(numels[use.unit] for use in uses if use.gather.start <= at < use.compute.end)))
        for at in times
    ]
