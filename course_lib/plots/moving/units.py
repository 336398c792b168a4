"""ZeRO-3 while a step goes on: units that are gathered, used and freed, and the bytes that a rank holds meanwhile."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from ...planner import size
from ..canvas import CATEGORIES, COMPUTE, FORWARD, MOVING, percent
from ..diagrams.schedules import Use, schedule
from .figure import Control, Cursor, Moving
from .shapes import Box, Lane, Shape, Still, filled, text

LOOKS = {"shard": CATEGORIES["parameters"], "gather": MOVING, "forward": FORWARD, "backward": COMPUTE}
LEGEND = {"shard": "parameters held", "gather": "arrives", "forward": "forward", "backward": "backward"}
TOP, ROW, BAR, SUM = 24, 36, 29, 84
AHEAD = (0, 1, 2)


def move_units(units: Iterable[tuple[str, int]], world_size: int) -> Moving:
    """Return the units of stage 3 over a step, and the parameters that a rank holds, with a cursor that plays the step.

    A unit is gathered in the time that its forward takes; its backward takes twice as long.

    Args:
        units: name and number of elements of each unit, in the order of forward, in fp32.
        world_size: the number of ranks that share the units.
    """
    names, numels = zip(*units, strict=True)
    uses = {ahead: schedule(numels, ahead) for ahead in AHEAD}
    ends = {ahead: each[-1].compute.end for ahead, each in uses.items()}
    held = {ahead: held_bytes(numels, each, world_size) for ahead, each in uses.items()}
    whole, longest, foot = 4 * sum(numels), max(ends.values()), TOP + len(names) * ROW + 26

    def lanes(ahead: int) -> Still:
        end, still = ends[ahead] / longest, []
        for number, name in enumerate(names):
            theirs = [use for use in uses[ahead] if use.unit == number]
            boxes = _breaths(theirs, ends[ahead], 1 / world_size)
            scaled = [box._replace(key=f"{place}", until=box.until / longest) for place, box in enumerate(boxes)]
            still.append(Lane(f"unit {number}", name, TOP + number * ROW, BAR, scaled))
        levels = [(until / longest, nbytes) for until, nbytes in held[ahead]]
        sums = [Box(f"{at}", until, "held", "", size(nbytes), nbytes / whole, nbytes / whole)
                for at, (until, nbytes) in enumerate(levels)]  # fmt: skip
        return [
            *still,
            Lane("sum", "held", foot, SUM, sums),
            Shape("whole", 0, foot, end, SUM, "ghost"),
            text("name of whole", 0.006, foot - 6, "note", f"all parameters: {size(whole)}"),
            Shape("end", end - 0.002, TOP - 8, 0.002, foot + SUM - TOP + 8, "line"),
            text("name of end", end, 11, "note", "the step ends", "end"),
        ]

    def caption(ahead: int) -> str:
        computes = sum(use.compute.end - use.compute.start for use in uses[ahead])
        most = max(nbytes for _, nbytes in held[ahead])
        return (
            f"With prefetch={ahead}, computing waits {percent(1 - computes / ends[ahead])} of the time. At its peak a rank "
            f"holds {size(most)}, its shards and what is gathered; all parameters together take {size(whole)}."
        )

    lines = (
        f"prefetch={ahead}, {names[use.unit]}, {use.when}: gather {use.gather}, computes {use.compute}, then freed"
        for ahead in AHEAD
        for use in uses[ahead]
    )
    return Moving(
        title="ZeRO-3: each unit is gathered, used and freed",
        controls={"ahead": Control(label="prefetch", values={str(ahead): ahead for ahead in AHEAD})},
        layers=[(["ahead"], lanes)],
        caption=(["ahead"], caption),
        looks=filled(LOOKS) | {"held": {"fill": CATEGORIES["parameters"]}},
        legend=LEGEND,
        text="\n".join([*map(caption, AHEAD), *lines]),
        height=foot + SUM + 4,
        left=78,
        right=80,
        cursor=Cursor(label="time", start=0.3),
    )


def _breaths(uses: Sequence[Use], end: float, shard: float) -> Iterator[Box]:
    """Yield boxes: the shard between uses, a slope while the other shards arrive, and all of it while it computes."""
    for use in uses:
        yield Box("", use.asked, "shard", "", "shard", shard, shard)
        yield Box("", use.gather.start, "shard", "", "asked for", shard, shard)
        yield Box("", use.gather.end, "gather", "", "arrives", shard, 1)
        yield Box("", use.compute.start, "shard", "", "whole")
        yield Box("", use.compute.end, use.when, use.when, use.when)
    yield Box("", end, "shard", "", "shard", shard, shard)


def held_bytes(numels: Sequence[int], uses: Sequence[Use], world_size: int) -> list[tuple[float, int]]:
    """Return the bytes of parameters that a rank holds, in fp32, each until a time at which they change.

    A rank always holds its shards. A unit has memory for all of it from when the rank asks for it until it is freed.
    """
    shards = sum(-(-numel // world_size) for numel in numels)
    times = sorted({0.0, *(use.asked for use in uses), *(use.compute.end for use in uses)})
    return [
        (until, 4 * (shards + sum(numels[use.unit] for use in uses if use.asked <= at < use.compute.end)))
        for at, until in pairwise(times)
    ]
