"""The bubble: two schedules of a pipeline, one above the other, and the activations that each rank keeps."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from ..canvas import CATEGORIES, COMPUTE, EARLIER, FORWARD, SHADE, UPDATE, percent
from ..diagrams.pipeline import Box as Pass
from ..diagrams.pipeline import placed
from .figure import Control, Cursor, Moving
from .shapes import Box, Lane, Still, filled, text

LOOKS = {"f0": FORWARD, "f1": EARLIER, "b0": COMPUTE, "b1": UPDATE, "kept": CATEGORIES["activations"]}
LEGEND = {"f0": "forward", "b0": "backward", "idle": "idle", "kept": "activations kept, in micro-batches"}
RANKS, MICRO_BATCHES, CHUNKS, BACKWARD = (2, 4, 8), (1, 2, 4, 8, 16), (1, 2), 2
TOP, PANEL, TALLEST = 34, 192, 36

Schedule = Callable[..., Any]
"""From the rank, the numbers of ranks and of micro-batches, and perhaps `chunks`, to the schedule of the rank."""


def move_schedules(schedules: Mapping[str, Schedule]) -> Moving:
    """Return schedules of a pipeline on one time axis, with a cursor that counts the activations that each rank keeps.

    A backward takes twice as long as a forward, and messages take no time. Kept activations count in micro-batches of
    all of a rank's parts: one of two parts counts half.

    Args:
        schedules: by name, functions such as `course_lib.parallel.one_forward_one_backward`. If a function does not
            take `chunks`, a rank has one part.
    """

    def panel(y: float, name: str) -> tuple[list[str], Callable[..., Still]]:
        def shapes(*setting: int) -> Still:
            try:
                rows, chunks = _rows(schedules[name], *setting), setting[2] if len(setting) > 2 else 1
            except ValueError as refused:
                return [text(name, -1, y - 9, "title", name), text(f"{name} refused", -1, y + 18, "word", f"{refused}")]
            longest = (setting[1] + setting[0] - 1) * (1 + BACKWARD)
            return [
                text(name, -1, y - 9, "title", name),
                text(f"{name} idle", 1, y - 9, "value", f"{percent(_idle(rows))} idle", "end"),
                text(f"{name} most", 2, y - 9, "note", f"≤ {_most(rows) / chunks:g} kept", "end"),
                *_lanes(name, y, rows, longest, chunks),
            ]

        return controls_of(name), shapes

    def controls_of(name: str) -> list[str]:
        return ["ranks", "micro_batches"] + ["chunks"] * ("chunks" in signature(schedules[name]).parameters)

    def caption(ranks: int, micro_batches: int, chunks: int) -> str:
        found = []
        for name, make in schedules.items():
            taken = (ranks, micro_batches, chunks)[: len(controls_of(name))]
            try:
                rows = _rows(make, *taken)
            except ValueError:
                continue
            most = _most(rows) / (chunks if len(taken) > 2 else 1)
            found.append(f"{name}: idle {percent(_idle(rows))} of the time, a rank keeps up to {most:g}")
        return f"{ranks} ranks, {micro_batches} micro-batches. {'; '.join(found)}."

    return Moving(
        title="The bubble of a pipeline, and the activations that its ranks keep",
        controls={
            "ranks": Control(label="ranks", values={str(n): n for n in RANKS}, start=1, slider=True),
            "micro_batches": Control(
                label="micro-batches", values={str(n): n for n in MICRO_BATCHES}, start=3, slider=True
            ),
            "chunks": Control(label="parts of a rank", values={str(n): n for n in CHUNKS}),
        },
        layers=[panel(TOP + number * PANEL, name) for number, name in enumerate(schedules)],
        caption=(["ranks", "micro_batches", "chunks"], caption),
        looks=filled(LOOKS) | {"idle": {"fill": SHADE}},
        legend=LEGEND,
        text="\n".join(caption(*setting) for setting in _settings()),
        height=TOP + len(schedules) * PANEL - 34,
        left=50,
        right=64,
        cursor=Cursor(label="time", look="kept", start=0.4),
    )


def _settings() -> list[tuple[int, int, int]]:
    return [(ranks, number, chunks) for chunks in CHUNKS for ranks in RANKS for number in MICRO_BATCHES]


def _rows(make: Schedule, ranks: int, micro_batches: int, chunks: int = 1) -> list[list[Pass]]:
    """Return each rank's passes. The unit of time is a forward of all parts of a rank."""
    more = {"chunks": chunks} if chunks > 1 else {}
    return placed([make(rank, ranks, micro_batches, **more) for rank in range(ranks)], BACKWARD)


def _idle(rows: Sequence[Sequence[Pass]]) -> float:
    return 1 - sum(one.end - one.start for row in rows for one in row) / len(rows) / max(row[-1].end for row in rows)


def kept(row: Sequence[Pass]) -> list[int]:
    """Return how many activations a rank keeps during each of its passes, one for each part of a micro-batch."""
    number, found = 0, []
    for one in row:
        number += one.kind == "forward"
        found.append(number)
        number -= one.kind == "backward"
    return found


def _most(rows: Sequence[Sequence[Pass]]) -> int:
    return max(max(kept(row)) for row in rows)


def _lanes(name: str, y: float, rows: Sequence[Sequence[Pass]], longest: float, chunks: int) -> list[Lane]:
    """Return a lane for each rank: its passes, and the time in which it is idle before each and after the last."""
    height, end, lanes = min(TALLEST, 148 / len(rows)), max(row[-1].end for row in rows), []
    for rank, row in enumerate(rows):
        boxes, at, count = [], 0.0, 0
        for one, now in zip(row, kept(row), strict=True):
            key, look = f"{one.kind[0]}{one.part}.{one.micro_batch}", f"{one.kind[0]}{one.part // len(rows) % 2}"
            if one.start > at:
                boxes.append(Box(f"-{key}", one.start / longest, "idle", "", f"{count / chunks:g}"))
            boxes.append(Box(key, one.end / longest, look, str(one.micro_batch), f"{now / chunks:g}"))
            at, count = one.end, now - (one.kind == "backward")
        if end > at:
            boxes.append(Box("-", end / longest, "idle", "", f"{count:g}"))
        lanes.append(Lane(f"{name} {rank}", f"rank {rank}", y + rank * height, height - 3, boxes))
    return lanes
