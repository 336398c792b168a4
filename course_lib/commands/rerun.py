"""`course rerun`: execute lessons on a different kind of world, without a browser, and compare with simulated ranks.

    for lesson in rerun([Path("notebooks/04-zero-1.ipynb")], "nccl:8", folder):
        print(lesson)

Each notebook runs twice, each time in its own kernel, and the learner's record stays unchanged. The executed copies
stay in `folder`. The report compares memory, communication and time of both runs with each other and with the plan.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from ..errors import CourseError
from ..planner import PASSES, Hardware, bus_bandwidth, seconds
from ..world import World
from . import journal

CELL_SECONDS = 600
"""The longest that one cell may take."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The totals of all runs of one notebook.

    Attributes:
        runs: the number of runs.
        peak_bytes: the most that a rank ever held.
        sent_bytes: by all ranks in all runs, ring volume.
        seconds: in functions on ranks;  collective_seconds: of that, in rank 0's collectives after all members had
            called.
        bus_bandwidth: bytes per second, as NCCL's tests define it; 0 if nothing was sent.
    """

    runs: int
    peak_bytes: int
    sent_bytes: int
    seconds: float
    collective_seconds: float
    bus_bandwidth: float


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """One notebook, executed on two worlds.

    Attributes:
        copy: the copy executed on the requested world.
        failed: why that execution failed; empty if it did not.
        simulated, measured: the totals on simulated ranks, and on the requested world.
        planned_seconds: the planner's estimate of `collective_seconds`; None if the hardware has fewer devices.
    """

    notebook: Path
    copy: Path
    failed: str
    simulated: Totals
    measured: Totals
    planned_seconds: float | None


def rerun(notebooks: Sequence[Path], world: str, folder: Path, hardware: Hardware) -> Iterator[Rerun]:
    """Execute notebooks on simulated ranks and on `world`, one after the other.

    Args:
        notebooks: the notebooks.
        world: for `$COURSE_WORLD`, such as "processes" or "nccl:8".
        folder: the folder for the copies executed on `world`.
        hardware: the hardware for which collectives are planned.

    Raises:
        CourseError: there is no such world here, a notebook cannot be read, or the folder cannot be written, or
            contains the notebooks.
    """
    World(1, backend=world)  # raises before anything runs
    _try(folder, notebooks)
    for path in notebooks:
        try:
            notebook = nbformat.read(path, as_version=4)
        except (OSError, ValueError) as error:
            reason = f"{path} is not a notebook that Jupyter has saved ({error})"
            raise CourseError(f"{reason}. Open it in JupyterLab and save it again.") from error
        _, simulated = _execute(notebook, "simulated")
        failed, measured = _execute(notebook, world)
        copy = folder / path.name
        nbformat.write(notebook, copy)
        yield Rerun(
            notebook=path,
            copy=copy,
            failed=failed,
            simulated=_totals(simulated),
            measured=_totals(measured),
            planned_seconds=_planned_seconds(measured, hardware),
        )


def _try(folder: Path, notebooks: Sequence[Path]) -> None:
    """Create the folder for the copies, and try to write there. Refuse the notebooks' own folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"{folder} cannot be written ({error.strerror}), and the executed copies go there"
        raise CourseError(f"{reason}. Name another folder: --copies FOLDER") from error
    for path in notebooks:
        if path.resolve().parent == folder.resolve():
            reason = f"{path} would be replaced by its executed copy"
            raise CourseError(f"{reason}, which goes to {folder}. Name another folder: --copies FOLDER")


def _execute(notebook: nbformat.NotebookNode, world: str) -> tuple[str, list[journal.Entry]]:
    """Run all cells. Return the reason of an early end, or an empty text, and the runs of worlds."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "journal"
        environment = os.environ | {"COURSE_HOME": scratch, "COURSE_WORLD": world}
        installed = f"import course_lib.commands.journal as _journal; _journal.install({str(file)!r}); del _journal"
        failed = ""
        try:
            client = NotebookClient(notebook, kernel_name="python3", timeout=CELL_SECONDS)
            client.extra_arguments = [f"--IPKernelApp.exec_lines={installed}"]
            client.execute(env=environment)
        except CellExecutionError as error:
            failed = f"{error.ename}: {error.evalue}"
        except (CellTimeoutError, DeadKernelError) as error:
            failed = str(error)
        if not file.exists():
            return failed or "its kernel could not install the journal", []
        return failed, list(journal.read(file))


def _collectives(entries: Sequence[journal.Entry]) -> Iterator[journal.Collective]:
    for entry in entries:
        yield from (one for one in entry.collectives if one.op in PASSES and one.members > 1 and one.total_bytes)


def _totals(entries: Sequence[journal.Entry]) -> Totals:
    collectives = list(_collectives(entries))
    spent = math.fsum(one.seconds for one in collectives)
    carried = math.fsum(
        one.seconds * bus_bandwidth(one.op, one.total_bytes, one.seconds, one.members) for one in collectives
    )
    return Totals(
        runs=len(entries),
        peak_bytes=max((entry.peak_bytes or 0 for entry in entries), default=0),
        sent_bytes=sum(entry.sent_bytes for entry in entries),
        seconds=math.fsum(entry.seconds for entry in entries),
        collective_seconds=spent,
        bus_bandwidth=carried / spent if spent else 0.0,
    )


def _planned_seconds(entries: Sequence[journal.Entry], hardware: Hardware) -> float | None:
    try:
        return math.fsum(
            seconds(one.op, one.total_bytes, hardware.shard_group(one.members)) for one in _collectives(entries)
        )
    except ValueError:  # a group has more ranks than the hardware has devices
        return None


def table(lessons: Sequence[Rerun], world: str, hardware: Hardware) -> str:
    """Return all lessons as one table. MB and GB are 10^6 and 10^9 bytes."""
    rows = [("lesson", "", "runs", "peak MB", "sent MB", "seconds", "in collectives", "bus GB/s"), *map(_row, lessons)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(cells))
        for cells in (zip(row, widths, strict=True) for row in rows)
    ]
    return "\n".join(
        [
            f"{world} / simulated; in collectives also what is planned for {hardware.name}",
            *lines,
            *(f"{one.notebook.stem} failed: {one.failed.strip().splitlines()[-1]}" for one in lessons if one.failed),
        ]
    )


def _row(lesson: Rerun) -> tuple[str, ...]:
    both = (lesson.measured, lesson.simulated)
    planned = "–" if lesson.planned_seconds is None else f"{lesson.planned_seconds:.3f}"
    return (
        lesson.notebook.stem,
        "failed" if lesson.failed else "passed",
        f"{lesson.measured.runs}",
        " / ".join(f"{totals.peak_bytes / 1e6:.2f}" for totals in both),
        " / ".join(f"{totals.sent_bytes / 1e6:.2f}" for totals in both),
        " / ".join(f"{totals.seconds:.2f}" for totals in both),
        " / ".join([*(f"{totals.collective_seconds:.3f}" for totals in both), planned]),
        " / ".join(f"{totals.bus_bandwidth / 1e9:.3f}" for totals in both),
    )
