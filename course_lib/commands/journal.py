"""A file with one entry for each run of a world. `course rerun` compares the files of two executions of a lesson."""

import functools
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..meter import CommCall
from ..world import Run, World


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run.

    Attributes:
        peak_bytes: the most that a rank held; 0 if that was not measured.
        sent_bytes: by all ranks, ring volume.
        seconds: of the slowest rank.
        calls: those of rank 0.
    """

    peak_bytes: int
    sent_bytes: int
    seconds: float
    calls: Sequence[CommCall]


def install(path: str) -> None:
    """Add an entry to the file at `path` after every run of this process, except dry runs, which take no time."""

    run_as_usual = World.run

    @functools.wraps(run_as_usual)
    def run_and_note(world: World, *call: Any, **kwargs: Any) -> Run:
        run = run_as_usual(world, *call, **kwargs)
        if world.backend != "dryrun":
            with Path(path).open("ab") as file:
                pickle.dump(_entry(run, world.measure), file)
        return run

    World.run = run_and_note  # type: ignore[method-assign]


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a file, in order; none if nothing ran."""
    with path.open("rb") as file:
        while file.peek():
            yield pickle.load(file)


def _entry(run: Run, measured: bool) -> Entry:
    return Entry(
        peak_bytes=max(memory.peak_bytes for memory in run.memory) if measured else 0,
        sent_bytes=sum(comm.sent_bytes for comm in run.comm),
        seconds=max(timeline.end - timeline.start for timeline in run.timeline),
        calls=run.comm[0].calls,
    )
