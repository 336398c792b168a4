"""The scoreboard: what each of the learner's own stages holds, sends and takes; and a page of all results."""

from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from ..data import TinyGPT, batch
from ..errors import CourseError
from ..meter import mark
from ..planner import duration, size
from ..progress import CourseMap, own_progress
from ..syllabus import lessons
from ..world import Run, World
from ..zero import DataParallel, Stage1, Stage2, Stage3
from .style import SHEET, inline, scrolled, title

COLUMNS = {"held_bytes": "held", "peak_bytes": "peak", "sent_bytes": "sent", "seconds": "time"}
STAGES = {"data parallel": DataParallel, "ZeRO-1": Stage1, "ZeRO-2": Stage2, "ZeRO-3": Stage3}
HEAD = title("Scoreboard", "Your stages")
EMPTY = 'Nothing is measured yet. A lesson adds a row when its last stage runs: `scoreboard("ZeRO-1", run)`.'


class Scoreboard:
    """Rows by name, with the forms that a notebook shows: HTML, or plain text. Each number is of the worst rank.

    `goals` are rows in grey: stages that are not the learner's.
    """

    def __init__(
        self,
        rows: Mapping[str, Mapping[str, float]],
        notice: str = "",
        goals: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.rows, self.notice = rows, notice
        self._all = {f"the course's {name}": row for name, row in (goals or {}).items()} | dict(rows)

    def _repr_html_(self) -> str:
        looks = {name: "" if name in self.rows else ' class="course-goal"' for name in self._all}
        rows = (f"<tr{look}>{self._cells(name)}</tr>" for name, look in looks.items())
        table = scrolled(("stage", *COLUMNS.values()), rows)
        about = f"<p>{inline(self._about)}</p>"
        return (
            f'<style>{SHEET}</style><div class="course-widget"><div class="course-card">'
            f"{HEAD}{table if self._all else ''}{about}</div></div>"
        )

    def _cells(self, name: str) -> str:
        return f'<th scope="row">{escape(name)}</th>' + "".join(self._cell(name, column) for column in COLUMNS)

    def _cell(self, name: str, column: str) -> str:
        if column not in self._all[name]:
            return "<td></td>"
        most = max(row.get(column, 0) for row in self._all.values())
        share = 100 * self._all[name][column] / most if most else 0
        return f'<td>{self._written(name, column)}<div class="course-bar" style="width: {share:.0f}%"></div></td>'

    def _written(self, name: str, column: str) -> str:
        number = self._all[name].get(column)
        if number is None:
            return ""
        return duration(number) if column == "seconds" else size(number)

    @property
    def _about(self) -> str:
        about = "Each number is that of the rank with the most." if self.rows else EMPTY
        return " ".join(filter(None, [about, self.notice]))

    def __repr__(self) -> str:
        width = max(map(len, self._all), default=0)
        table = [("", *COLUMNS.values())] + [
            (name, *(self._written(name, column) for column in COLUMNS)) for name in self._all
        ]
        lines = [f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells).rstrip() for name, *cells in table]
        return "\n".join([*(lines if self._all else []), self._about])


def scoreboard(name: str | None = None, run: Run | None = None) -> Scoreboard:
    """Return the scoreboard: what each of your stages holds, sends and takes. As the last line of a cell it is shown.

    The course's own stages come first, in grey and without a time. They train as the lessons do: three steps of 24
    sequences, on four simulated ranks.

    Args:
        name: the name of a row: "data parallel", "ZeRO-1". The same name replaces the row.
        run: the run that the row is about: `scoreboard("ZeRO-1", run)`.

    Raises:
        CourseError: one of the two is missing, or the run was not measured.
    """
    if (name is None) != (run is None):
        raise CourseError('scoreboard() takes both a name and a run, or neither: scoreboard("ZeRO-1", run).')
    if name is not None and run is not None:
        own_progress().add_score(name, measures(run))
    return Scoreboard(own_progress().scores(), own_progress().notice, of_the_course())


@cache
def of_the_course() -> dict[str, dict[str, float]]:
    """Measure the course's own stages, once in a kernel, without their seconds, which no cell of a lesson took."""
    rows = {name: measures(World(4, backend="simulated").run(_train, stage)) for name, stage in STAGES.items()}
    return {name: {column: row[column] for column in row if column != "seconds"} for name, row in rows.items()}


def _train(stage: Any) -> None:
    torch.manual_seed(0)
    engine = stage(TinyGPT(), torch.optim.Adam, lr=3e-3)
    for step in range(3):
        inputs, targets = (whole.chunk(dist.get_world_size())[dist.get_rank()] for whole in batch(step, 24))
        cross_entropy(engine(inputs).flatten(0, 1), targets.flatten()).backward()
        engine.step()
        mark("after step()")
        engine.zero_grad()


def measures(run: Run) -> dict[str, float]:
    """Return the row of a run: bytes held at its last mark (without marks, at its end), at its peak, and sent; seconds.

    Each number is that of the rank with the most.

    Raises:
        CourseError: the run was not measured.
    """
    return {
        "held_bytes": max([rank, *rank.marks.values()][-1].current_bytes for rank in run.memory),
        "peak_bytes": max(rank.peak_bytes for rank in run.memory),
        "sent_bytes": max(rank.sent_bytes for rank in run.comm),
        "seconds": max(rank.end - rank.start for rank in run.timeline),
    }


class MyResults:
    """The learner's results, with the forms that a notebook shows, and `save` to write them to a file."""

    def __init__(self) -> None:
        done = own_progress()
        begun = [stop for stop in CourseMap(lessons(), done.summary()).stops if stop.done]
        self.measured = Scoreboard(done.scores(), done.notice)
        self.solved = [f"{stop.lesson.title}: {stop.done} of {len(stop.items)} exercises and quizzes" for stop in begun]

    def _repr_html_(self) -> str:
        solved = "".join(f"<li>{escape(line)}</li>" for line in self.solved)
        return f"{self.measured._repr_html_()}<ul>{solved}</ul>"

    def __repr__(self) -> str:
        return "\n".join([repr(self.measured), *self.solved])

    def save(self, path: str | Path) -> None:
        """Write the page to an HTML file."""
        style = "font-family: sans-serif; max-width: 50em; margin: 2em auto; color: black; background: white"
        head = '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>ZeRO, built and measured</title>'
        Path(path).write_text(f'{head}<body style="{style}">{self._repr_html_()}</body></html>', encoding="utf-8")


def my_results() -> MyResults:
    """Return a page of what you have measured and solved. As the last line of a cell it is shown."""
    return MyResults()
