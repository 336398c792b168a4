"""ZeRO-3 while a step goes on: units that are gathered, used and freed, and the bytes that a rank holds meanwhile."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from ...planner import size
from ..canvas import CATEGORIES, COMPUTE, FORWARD, MOVING, percent
from ..diagrams.schedules import Use, schedule
from .figure import Control, Moving
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
    held = {ahead: held_bytes(numels, each, world_size) for ahead, each in uses.items()}
    whole, longest, foot = 4 * sum(numels), uses[0][-1].compute.end, TOP + len(names) * ROW + 26

    def step(ahead: int) -> Still:
        end = uses[ahead][-1].compute.end
        lanes = [
            Lane(f"unit {number}", name, TOP + number * ROW, BAR, _scaled(boxes, longest))
            for number, name in enumerate(names)
            for boxes in [_breaths([use for use in uses[ahead] if use.unit == number], end, 1 / world_size)]
        ]
        levels = (
            Box(f"{number}", until, "held", "", size(nbytes), nbytes / whole, nbytes / whole)
            for number, (until, nbytes) in enumerate(held[ahead])
        )
        return [
            *lanes,
            Lane("sum", "held", foot, SUM, _scaled(levels, longest)),
            Shape("whole", 0, foot, end / longest, SUM, "ghost"),
            text("name of whole", 0.006, foot - 6, "note", f"all parameters: {size(whole)}"),
            Shape("end", end / longest - 0.002, TOP - 8, 0.002, foot + SUM - TOP + 8, "line"),
            text("name of end", end / longest, 11, "note", "the step ends", "end"),
        ]

    def caption(ahead: int) -> str:
        waits = 1 - sum(use.compute.end - use.compute.start for use in uses[ahead]) / uses[ahead][-1].compute.end
        most = max(nbytes for _, nbytes in held[ahead])
        return (
            f"With prefetch={ahead}, computing waits {percent(waits)} of the time. At its peak a rank holds "
            f"{size(most)}, its shards and what is gathered; all parameters together take {size(whole)}. Assumed here: "
            "a gather takes as long as the unit's forward, backward twice as long, and no gradients travel."
        )

    return Moving(
        title="ZeRO-3: each unit is gathered, used and freed",
        controls={"ahead": Control("prefetch", AHEAD)},
        layers=[(["ahead"], step)],
        caption=(["ahead"], caption),
        looks=filled(LOOKS) | {"held": {"fill": CATEGORIES["parameters"]}},
        legend=LEGEND,
        height=foot + SUM + 4,
        left=78,
        right=80,
        cursor="",
    )


def _breaths(uses: Sequence[Use], end: float, shard: float) -> Iterator[Box]:
    """Yield boxes: the shard between uses, a slope while the other shards arrive, and all of it while it computes."""
    for use in uses:
        yield Box(f"{use.when} 0", use.asked, "shard", "", "shard", shard, shard)
        yield Box(f"{use.when} 1", use.gather.start, "shard", "", "asked for", shard, shard)
        yield Box(f"{use.when} 2", use.gather.end, "gather", "", "arrives", shard, 1)
        yield Box(f"{use.when} 3", use.compute.start, "shard", "", "whole")
        yield Box(f"{use.when} 4", use.compute.end, use.when, use.when, use.when)
    yield Box("end", end, "shard", "", "shard", shard, shard)


def _scaled(boxes: Iterable[Box], longest: float) -> list[Box]:
    """Return the boxes that are not empty, with the longest step as the unit of time."""
    pairs = pairwise([Box("", 0, "", "", ""), *boxes])
    return [box._replace(until=box.until / longest) for before, box in pairs if box.until > before.until]


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
