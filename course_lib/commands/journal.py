"""A file with one line for each run of a world. `course rerun` compares the files of two executions of a lesson."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..world import Run, World, observers


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One call of rank 0: its op, bytes of the whole, number of members, and its seconds after all had called."""

    op: str
    total_bytes: int
    members: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run.

    Attributes:
        function: the name of the function that ran.
        world_size: the number of ranks.
        peak_bytes: the most that a rank held; None if that was not measured.
        sent_bytes: by all ranks, ring volume.
        seconds: of the slowest rank.
        collectives: those of rank 0.
    """

    function: str
    world_size: int
    peak_bytes: int | None
    sent_bytes: int
    seconds: float
    collectives: tuple[Collective, ...]


def install(path: str) -> None:
    """Write a line to the file at `path` after every run of this process, except dry runs, which take no time."""

    Path(path).touch()

    def note(function: str, world: World, run: Run) -> None:
        if world.backend != "dryrun":
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(_entry(function, run, world.measure))) + "\n")

    observers.append(note)


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a file, in order; none if nothing ran."""
    for line in path.read_text("utf-8").splitlines():
        fields = json.loads(line)
        yield Entry(**fields | {"collectives": tuple(Collective(**one) for one in fields["collectives"])})


def _entry(function: str, run: Run, measured: bool) -> Entry:
    return Entry(
        function=function,
        world_size=len(run),
        peak_bytes=max(memory.peak_bytes for memory in run.memory) if measured else None,
        sent_bytes=sum(comm.sent_bytes for comm in run.comm),
        seconds=max(timeline.end - timeline.start for timeline in run.timeline),
        collectives=tuple(
            Collective(op=call.op, total_bytes=call.total_bytes, members=len(call.ranks), seconds=seconds)
            for call in run.comm[0].calls
            if 0 < (seconds := call.done - call.matched) < math.inf
        ),
    )
