"""The bubble: schedules of a pipeline, one above the other, and the activations that each rank keeps."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from textwrap import wrap
from typing import Any

from ..canvas import CATEGORIES, COMPUTE, EARLIER, FORWARD, SHADE, UPDATE, percent
from ..diagrams.pipeline import Box as Pass
from ..diagrams.pipeline import placed
from .figure import Control, Moving
from .shapes import Box, Lane, Still, filled, text

LOOKS = {"f0": FORWARD, "f1": EARLIER, "b0": COMPUTE, "b1": UPDATE, "kept": CATEGORIES["activations"]}
LEGEND = {"f0": "forward", "b0": "backward", "idle": "idle", "kept": "activations kept, in micro-batches"}
TOP, PANEL, TALLEST, BACKWARD = 34, 192, 36, 2
PHONE = 42
"""The characters of a line on a phone."""

Schedule = Callable[..., Any]
"""From the rank, the numbers of ranks and of micro-batches, and perhaps `chunks`, to the schedule of the rank."""
Rows = Sequence[Sequence[Pass]]
"""The passes of each rank. The unit of time is a forward of all parts of a rank."""


def move_schedules(schedules: Mapping[str, Schedule]) -> Moving:
    """Return schedules of a pipeline on one time axis, with a cursor that counts the activations that each rank keeps.

    A backward takes twice as long as a forward, and messages take no time. Kept activations count in micro-batches of
    all of a rank's parts: one of two parts counts half.

    Args:
        schedules: by name, functions such as `course_lib.parallel.one_forward_one_backward`. If a function does not
            take `chunks`, a rank has one part.
    """

    def rows_of(name: str, ranks: int, micro_batches: int, chunks: int) -> Rows:
        more = {"chunks": chunks} if chunks > 1 else {}
        return placed([schedules[name](rank, ranks, micro_batches, **more) for rank in range(ranks)], BACKWARD)

    def panel(y: float, name: str) -> tuple[list[str], Callable[..., Still]]:
        def shapes(ranks: int, micro_batches: int, chunks: int = 1) -> Still:
            title = text(name, -1, y - 9, "title", name)
            try:
                rows = rows_of(name, ranks, micro_batches, chunks)
            except ValueError as refused:
                lines = enumerate(wrap(f"{refused}", PHONE), 1)
                return [title, *(text(f"{name} {line}", -1, y + 18 * line, "word", words) for line, words in lines)]
            idle = text(f"{name} idle", 1, y - 9, "value", f"{percent(_idle(rows))} idle", "end")
            most = text(f"{name} most", 2, y - 9, "note", f"≤ {_most(rows) / chunks:g} kept", "end")
            longest = (micro_batches + ranks - 1) * (1 + BACKWARD)  # without chunks
            return [title, idle, most, *_lanes(name, y, rows, longest, chunks)]

        return ["ranks", "micro_batches"] + ["chunks"] * takes_chunks[name], shapes

    def caption(ranks: int, micro_batches: int, chunks: int) -> str:
        found = []
        for name in schedules:
            parts = chunks if takes_chunks[name] else 1
            if parts == 1 or micro_batches % ranks == 0:
                rows = rows_of(name, ranks, micro_batches, parts)
                keeps = f"a rank keeps activations of up to {_most(rows) / parts:g}"
                found.append(f"{name}: idle {percent(_idle(rows))} of the time, {keeps}")
        batches = "micro-batch" + "es" * (micro_batches > 1)
        return f"{ranks} ranks, {micro_batches} {batches}. {'; '.join(found)}."

    takes_chunks = {name: "chunks" in signature(make).parameters for name, make in schedules.items()}
    return Moving(
        title="The bubble of a pipeline, and the activations that its ranks keep",
        controls={
            "ranks": Control("ranks", (2, 4, 8), 1),
            "micro_batches": Control("micro-batches", (1, 2, 4, 8, 16), 3),
            "chunks": Control("parts of a rank", (1, 2)),
        },
        layers=[panel(TOP + number * PANEL, name) for number, name in enumerate(schedules)],
        caption=(["ranks", "micro_batches", "chunks"], caption),
        looks=filled(LOOKS) | {"idle": {"fill": SHADE}},
        legend=LEGEND,
        height=TOP + len(schedules) * PANEL - 34,
        left=50,
        right=74,
        cursor="kept",
    )


def _idle(rows: Rows) -> float:
    return 1 - sum(one.end - one.start for row in rows for one in row) / len(rows) / max(row[-1].end for row in rows)


def kept(row: Sequence[Pass]) -> list[int]:
    """Return how many activations a rank keeps during each of its passes, one for each part of a micro-batch."""
    number, found = 0, []
    for one in row:
        number += one.kind == "forward"
        found.append(number)
        number -= one.kind == "backward"
    return found


def _most(rows: Rows) -> int:
    return max(max(kept(row)) for row in rows)


def _lanes(name: str, y: float, rows: Rows, longest: float, chunks: int) -> list[Lane]:
    """Return a lane for each rank: its passes, and the time in which it is idle before each and after the last."""
    height, end, lanes = min(TALLEST, 148 / len(rows)), max(row[-1].end for row in rows), []
    for rank, row in enumerate(rows):
        boxes, at, left = [], 0.0, 0
        for one, now in zip(row, kept(row), strict=True):
            key, look = f"{one.kind[0]}{one.part}.{one.micro_batch}", f"{one.kind[0]}{one.part // len(rows) % 2}"
            if one.start > at:
                boxes.append(Box(f"-{key}", one.start / longest, "idle", "", f"{left / chunks:g}"))
            boxes.append(Box(key, one.end / longest, look, str(one.micro_batch), f"{now / chunks:g}"))
            at, left = one.end, now - (one.kind == "backward")
        if end > at:
            boxes.append(Box("-", end / longest, "idle", "", f"{left:g}"))
        lanes.append(Lane(f"{name} {rank}", f"rank {rank}", y + rank * height, height - 3, boxes))
    return lanes
