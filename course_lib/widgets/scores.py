"""The scoreboard: what each of the learner's own stages holds, sends and takes, a row for each."""

from collections.abc import Mapping
from html import escape

from ..errors import CourseError
from ..planner import duration, size
from ..progress import own_progress
from ..world import Run
from .style import SHEET, inline, scrolled, title

COLUMNS = {"held_bytes": "held", "peak_bytes": "peak", "sent_bytes": "sent", "seconds": "time"}
HEAD = title("Scoreboard", "Your stages")
EMPTY = 'Nothing is measured yet. A lesson adds a row when its last stage runs: `scoreboard("ZeRO-1", run)`.'


class Scoreboard:
    """Rows by name, with the forms that a notebook shows: HTML, or plain text. Each number is of the worst rank."""

    def __init__(self, rows: Mapping[str, Mapping[str, float]], notice: str = "") -> None:
        self.rows, self.notice = rows, notice

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{name}</th>' for name in ("stage", *COLUMNS.values()))
        body = "".join(f"<tr>{self._cells(name)}</tr>" for name in self.rows)
        table = scrolled(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        about = f"<p>{inline(self._about)}</p>"
        return (
            f'<style>{SHEET}</style><div class="course-widget"><div class="course-card">'
            f"{HEAD}{table if self.rows else ''}{about}</div></div>"
        )

    def _cells(self, name: str) -> str:
        return f'<th scope="row">{escape(name)}</th>' + "".join(self._cell(name, column) for column in COLUMNS)

    def _cell(self, name: str, column: str) -> str:
        most = max(row[column] for row in self.rows.values())
        share = 100 * self.rows[name][column] / most if most else 0
        return f'<td>{self._written(name, column)}<div class="course-bar" style="width: {share:.0f}%"></div></td>'

    def _written(self, name: str, column: str) -> str:
        number = self.rows[name][column]
        return duration(number) if column == "seconds" else size(number)

    @property
    def _about(self) -> str:
        about = "Each number is that of the rank with the most." if self.rows else EMPTY
        return " ".join(filter(None, [about, self.notice]))

    def __repr__(self) -> str:
        width = max(map(len, self.rows), default=0)
        table = [("", *COLUMNS.values())] + [
            (name, *(self._written(name, column) for column in COLUMNS)) for name in self.rows
        ]
        lines = [f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells) for name, *cells in table]
        return "\n".join([*(lines if self.rows else []), self._about])


def scoreboard(name: str | None = None, run: Run | None = None) -> Scoreboard:
    """Return the scoreboard: what each of your stages holds, sends and takes. As the last line of a cell it is shown.

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
    return Scoreboard(own_progress().scores(), own_progress().notice)


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
