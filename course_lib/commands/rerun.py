"""`course rerun`: execute lessons on a different kind of world, without a browser, and compare with simulated ranks.

    done = list(rerun([Path("notebooks/04-zero-1.ipynb")], "nccl:8", folder))
    print(table(done, "nccl:8", hardware))

Each notebook runs twice, each time in its own kernel, and the learner's record stays unchanged. The executed copies
stay in `folder`. The report compares memory, communication and time of both runs with each other and with the plan.
"""

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from ..planner import PASSES, Hardware, aligned, seconds
from ..syllabus import read_cells
from ..world import World
from .journal import Entry, read

CELL_SECONDS = 600
"""The longest that one cell may take."""

INSTALL = "import course_lib.commands.journal as _journal; _journal.install({file!r}); del _journal"


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """One notebook, executed on two worlds.

    Attributes:
        copy: the copy executed on the requested world.
        failed: why that execution failed; empty if it did not.
        simulated, measured: its runs on simulated ranks, and on the requested world.
    """

    notebook: Path
    copy: Path
    failed: str
    simulated: Sequence[Entry]
    measured: Sequence[Entry]


def rerun(notebooks: Sequence[Path], world: str, folder: Path) -> Iterator[Rerun]:
    """Execute notebooks on simulated ranks and on `world`, one after the other.

    Args:
        notebooks: the notebooks.
        world: for `$COURSE_WORLD`, such as "processes" or "nccl:8".
        folder: the folder for the copies executed on `world`.

    Raises:
        CourseError: there is no such world here, or a notebook cannot be read. Nothing has run then.
    """
    World(1, backend=world)  # raises if there is no such world
    for path in notebooks:
        read_cells(path)  # raises if it is no notebook
    folder.mkdir(parents=True, exist_ok=True)
    return _reruns(notebooks, world, folder)


def _reruns(notebooks: Sequence[Path], world: str, folder: Path) -> Iterator[Rerun]:
    for path in notebooks:
        notebook: NotebookNode = nbformat.read(path, as_version=4)
        _, simulated = _execute(notebook, "simulated")
        failed, measured = _execute(notebook, world)
        copy = folder / path.name
        nbformat.write(notebook, copy)
        yield Rerun(notebook=path, copy=copy, failed=failed, simulated=simulated, measured=measured)


def _execute(notebook: NotebookNode, world: str) -> tuple[str, list[Entry]]:
    """Run all cells. Return the reason of an early end, or an empty text, and the runs of worlds."""
    failed = ""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "journal"
        file.touch()
        client = NotebookClient(notebook, kernel_name="python3", timeout=CELL_SECONDS)
        client.extra_arguments = [f"--IPKernelApp.exec_lines={INSTALL.format(file=str(file))}"]
        try:
            client.execute(env=os.environ | {"COURSE_HOME": scratch, "COURSE_WORLD": world})
        except CellExecutionError as error:
            failed = f"{error.ename}: {error.evalue}"
        except (CellTimeoutError, DeadKernelError) as error:
            failed = str(error)
        return failed, list(read(file))


def table(lessons: Sequence[Rerun], world: str, hardware: Hardware) -> str:
    """Return all lessons as one table; collectives are planned for `hardware`. MB and GB are 10^6 and 10^9 bytes."""
    rows = [("lesson", "", "runs", "peak MB", "sent MB", "seconds", "in collectives")]
    for one in lessons:
        both = zip(_figures(one.measured), _figures(one.simulated), strict=True)
        peak, sent, took, spent = map(" / ".join, both)
        planned = planned_seconds(one.measured, hardware)
        spent += " / –" if planned is None else f" / {planned:.3f}"
        ended = "failed" if one.failed else "passed"
        rows.append((one.notebook.stem, ended, str(len(one.measured)), peak, sent, took, spent))
    lines = [f"{world} / simulated; in collectives: {world} / simulated / planned for {hardware.name}", aligned(rows)]
    lines += [f"{one.notebook.stem} failed: {one.failed.strip().splitlines()[-1]}" for one in lessons if one.failed]
    return "\n".join(lines)


def _figures(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the most that a rank ever held, bytes sent by all ranks, seconds, and of these in collectives."""
    return (
        f"{max((entry.peak_bytes for entry in entries), default=0) / 1e6:.2f}",
        f"{sum(entry.sent_bytes for entry in entries) / 1e6:.2f}",
        f"{math.fsum(entry.seconds for entry in entries):.2f}",
        f"{math.fsum(took for *_, took in collectives(entries)):.3f}",
    )


def planned_seconds(entries: Sequence[Entry], hardware: Hardware) -> float | None:
    """Return how long the collectives would take on `hardware`; None if a group has more ranks than it has devices."""
    try:
        calls = collectives(entries)
        return math.fsum(seconds(op, nbytes, hardware.shard_group(members)) for op, nbytes, members, _ in calls)
    except ValueError:
        return None


def collectives(entries: Sequence[Entry]) -> Iterator[tuple[str, int, int, float]]:
    """Yield rank 0's collectives: op, bytes of the whole, number of members, and seconds after all had called."""
    for call in chain.from_iterable(entry.calls for entry in entries):
        members, spent = len(call.ranks), call.done - call.matched
        if call.op in PASSES and members > 1 and call.total_bytes and 0 < spent < math.inf:
            yield call.op, call.total_bytes, members, spent
