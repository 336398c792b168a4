"""What the GPU kit has recorded of a rank on a GPU, drawn beside a simulated rank of the same program."""

import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from ...planner import duration
from ..canvas import COMPUTE, MOVING, WIDTH, Canvas, percent
from ..memory import plot_memory
from ..picture import Picture
from ..timeline import merged

Spans = Sequence[tuple[float, float]]
COLOURS = {"computed": COMPUTE, "bytes in flight": MOVING}
RECORDS = files("course_lib.data") / "recorded"
"""A file for each engine, which `benchmarks.gpu.engines.record` writes."""


def plot_recorded(world: Any, steps: Callable[[str], None], engine: str, what: str) -> Picture:
    """Run two steps, and return a figure of rank 0, and of rank 0 in the record of `engine`.

    Args:
        world: of two ranks.
        steps: `production.recorded_steps`.
        engine: "Stage3" or "FSDP2".
        what: "timeline", or "memory": what CUDA's allocator held.
    """
    record, run = json.loads((RECORDS / f"{engine}.json").read_text()), world.run(steps, engine)
    titles = ("simulated rank", record["card"])
    if what == "memory":
        return plot_memory([run.memory[0], _memory(record["held_bytes"])], titles)
    line = run.timeline[0]
    simulated = [[(part.start, part.end) for part in parts] for parts in (line.computed, line.in_flight)]
    return _timelines(dict(zip(titles, (simulated, [record["computed"], record["in_flight"]]), strict=True)))


def _memory(held: Sequence[int]) -> Any:
    """Return what `plot_memory` reads of bytes held after each change. An allocator does not know what they are."""
    end, most = ({"other": nbytes} for nbytes in (held[-1], max(held)))
    changes = [
        SimpleNamespace(
            seconds=0.0,
            deltas={"other": after - before},
            highest_bytes=max(before, after),
            operator="a change",
            line=None,
        )
        for before, after in pairwise([0, *held])
    ]
    peak = SimpleNamespace(by_category=most, holdings=())
    return SimpleNamespace(timeline=changes, peak_bytes=max(held), at_peak=peak, by_category=end, marked=(), marks={})


def _timelines(ranks: dict[str, Sequence[Spans]]) -> Picture:
    """Return when each rank computed, and when bytes were in flight. A rank's row is as wide as its own time."""
    canvas, lines = Canvas(), []
    canvas.legend(COLOURS.items())
    for title, rows in ranks.items():
        start = min(begin for spans in rows for begin, _ in spans)
        seconds = max(end for spans in rows for _, end in spans) - start
        scale = WIDTH / seconds
        canvas.title(f"{title}, {duration(seconds)}")
        for (what, colour), spans in zip(COLOURS.items(), rows, strict=True):
            intervals = [SimpleNamespace(start=begin, end=end) for begin, end in sorted(spans)]
            for begin, end, _ in merged(intervals, 0.5 / scale):
                canvas.rect((begin - start) * scale, canvas.y + 4, max(1, (end - begin) * scale), 16, colour)
            canvas.y += 20
            busy = sum(end - begin for begin, end, _ in merged(intervals, 0))
            lines.append(f"{title}, {what}: {percent(busy / seconds)}")
    caption = "Shares of the time; a bar is at least a pixel wide, and so can look longer than it is."
    return canvas.picture(f"{caption} {'; '.join(lines)}.", "\n".join(lines))
