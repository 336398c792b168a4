"""The results of grading, as a table, as JSON and as CSV.

Names and errors are a learner's own words. In the table their control characters are shown as escapes, so that they
cannot forge a line of it. In CSV, a value that a spreadsheet would compute gets a leading apostrophe, which makes it
text.
"""

import csv
import io
import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal

Status = Literal["passed", "failed", "error", "unattempted", "missing"]


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The grade of one exercise in one notebook.

    Attributes:
        status: the verdict's, or `missing`: the lesson has the exercise, and the notebook does not.
        observed: the observation, or why there is no verdict; empty after a pass.
        mistake: the id of the known mistake that behaves like the solution.
    """

    exercise: str
    status: Status
    observed: str = ""
    mistake: str = ""


@dataclass(frozen=True, kw_only=True)
class Graded:
    """The grades of one notebook.

    Attributes:
        ended: why its run ended early; empty if it did not.
        remarks: points for an instructor.
        digest: of the notebook's content, SHA-256; empty if it cannot be read.
    """

    notebook: str
    exercises: tuple[Grade, ...] = ()
    ended: str = ""
    remarks: tuple[str, ...] = ()
    digest: str = ""

    @property
    def passed(self) -> bool:
        """Return whether the notebook ran to its end, has exercises, and passed each."""
        return not self.ended and bool(self.exercises) and all(grade.status == "passed" for grade in self.exercises)

    def __str__(self) -> str:
        passed = sum(grade.status == "passed" for grade in self.exercises)
        lines = [f"{self.notebook}: {passed} of {len(self.exercises)} passed"]
        lines += [f"  ! {_shortened(text, 200)}" for text in (self.ended, *self.remarks) if text]
        names = [_printable(grade.exercise)[:80] for grade in self.exercises]
        width = max(map(len, names), default=0)
        for name, grade in zip(names, self.exercises, strict=True):
            lines.append(f"  {name:<{width}}  {grade.status:<11}  {_shortened(grade.observed, 100)}".rstrip())
        return "\n".join(map(_printable, lines))


def best(grades: Iterable[Grade]) -> dict[str, Grade]:
    """Return one grade for each exercise: a pass if there is one, else that of the last attempt."""
    chosen: dict[str, Grade] = {}
    for grade in grades:
        earlier = chosen.get(grade.exercise)
        if earlier is None or (earlier.status != "passed" and grade.status != "unattempted"):
            chosen[grade.exercise] = grade
    return chosen


def _shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def as_json(graded: Sequence[Graded]) -> str:
    """Return a list of notebooks, each with the fields of its `Graded`, and whether it `passed`."""
    return json.dumps([asdict(one) | {"passed": one.passed} for one in graded], indent=1, ensure_ascii=False)


def from_json(text: str) -> list[Graded]:
    """Return what `as_json` wrote. Raises ValueError, KeyError or TypeError for other texts."""
    return [
        Graded(
            notebook=one["notebook"],
            exercises=tuple(Grade(**grade) for grade in one["exercises"]),
            ended=one["ended"],
            remarks=tuple(one["remarks"]),
            digest=one["digest"],
        )
        for one in json.loads(text)
    ]


def as_csv(graded: Sequence[Graded]) -> str:
    """Return a row for each exercise. A notebook without exercises has one row that gives the reason."""
    columns = [field.name for field in fields(Grade)]
    text = io.StringIO()
    writer = csv.DictWriter(text, ["notebook", "passed", *columns, "ended", "remarks"])
    writer.writeheader()
    for one in graded:
        passed = "yes" if one.passed else "no"
        whole = {"notebook": one.notebook, "passed": passed, "ended": one.ended, "remarks": "; ".join(one.remarks)}
        for row in [asdict(grade) for grade in one.exercises] or [dict.fromkeys(columns, "")]:
            writer.writerow({column: as_text(value) for column, value in (whole | row).items()})
    return text.getvalue()


def as_text(value: str) -> str:
    """Return a value of CSV that no spreadsheet computes."""
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
