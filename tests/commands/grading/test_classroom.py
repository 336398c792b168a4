"""The grades of a class, as Canvas and Moodle import them."""

import csv
import io
import os
from pathlib import Path

import pytest

from course_lib.commands import cli
from course_lib.commands.grading import Grade, Graded, as_gradebook
from course_lib.syllabus import Lesson

COURSE = [
    Lesson(path=Path("03-first.ipynb"), title="03 · First", minutes=9, quizzes={}, exercises={"a.x": "X", "a.y": "Y"}),
    Lesson(path=Path("04-second.ipynb"), title="04 · Second", minutes=9, quizzes={}, exercises={"b.z": "Z"}),
    Lesson(path=Path("05-third.ipynb"), title="05 · Third", minutes=9, quizzes={}, exercises={"c.w": "W"}),
]


def notebook(path: str, *grades: Grade, ended: str = "") -> Graded:
    return Graded(notebook=path, exercises=grades, ended=ended)


def passed(name: str) -> Grade:
    return Grade(exercise=name, status="passed")


def slip(name: str, mistake: str, observed: str = "it is 4, and should be 2") -> Grade:
    return Grade(exercise=name, status="failed", mistake=mistake, observed=observed)


def read(graded: list[Graded]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_gradebook(graded, COURSE))))


def test_a_gradebook_has_the_columns_of_canvas_and_one_for_each_lesson_handed_in() -> None:
    graded = [
        notebook("in/zoe/03-first.ipynb", passed("a.x"), slip("a.y", "")),
        notebook("in/zoe/work/04-second.ipynb", passed("b.z")),
        notebook("in/ann.ipynb", passed("a.x"), passed("a.y"), Grade(exercise="b.z", status="missing")),
        notebook("in/20-123-456.ipynb", passed("b.z")),
    ]

    number, ann, zoe = read(graded)
    assert number["Student"] == "20-123-456"
    assert list(ann) == ["Student", "ID", "SIS Login ID", "Section", "03-first", "04-second"]
    assert list(ann.values()) == ["ann", "", "ann", "", "100.0", ""]
    assert list(zoe.values()) == ["zoe", "", "zoe", "", "50.0", "100.0"]


def test_an_exercise_that_passed_in_one_notebook_has_passed() -> None:
    late, early = slip("a.x", "doubled"), passed("a.x")
    graded = [notebook("ann/03-first.ipynb", early, passed("a.y")), notebook("ann/03-first (1).ipynb", late)]

    (ann,) = read(graded)
    assert ann["03-first"] == "100.0"


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["/in/ann/Copy of 03-first.ipynb", "/in/bob/Copy of Copy of 07-first.ipynb"], ["ann", "bob"]),
        (["/in/ann/sharded/03-first.ipynb", "/in/bob/sharded/03-first.ipynb"], ["ann", "bob"]),
        (["/in/01-tanaka.ipynb", "/in/02-sato.ipynb"], ["01-tanaka", "02-sato"]),
        (["/in/ann/solution.ipynb", "/in/bob/solution.ipynb"], ["/in/ann/solution", "/in/bob/solution"]),
        (["/in/1/ann/03-first.ipynb", "/in/1/bob/03-first.ipynb", "/in/2/ann/03-first.ipynb"],
            ["/in/1/ann", "/in/2/ann", "bob"]),
    ],
)  # fmt: skip
def test_notebooks_of_two_students_are_two_rows(files: list[str], names: list[str]) -> None:
    assert [row["Student"] for row in read([notebook(file, passed("a.x")) for file in files])] == names


def test_different_lessons_of_one_name_in_two_folders_are_one_row() -> None:
    second = notebook("in/04/ann.ipynb", passed("b.z"), Grade(exercise="a.x", status="missing"))
    (ann,) = read([notebook("in/03/ann.ipynb", passed("a.x"), passed("a.y")), second])
    assert list(ann.values()) == ["ann", "", "ann", "", "100.0", "100.0"]


def test_a_notebook_that_cannot_be_read_has_no_grade() -> None:
    graded = [notebook("ann/03-first.ipynb", ended="it is not a notebook")]

    (ann,) = read(graded)
    assert list(ann) == ["Student", "ID", "SIS Login ID", "Section"]


def test_a_name_is_no_formula() -> None:
    (student,) = read([notebook("=1+1/03-first.ipynb", slip("a.x", ""))])
    assert student["Student"] == student["SIS Login ID"] == "'=1+1"


def test_the_command_writes_a_gradebook_and_into_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradebook, table = tmp_path / "grades.csv", tmp_path / "class.csv"
    os.mkfifo(tmp_path / "pipe")
    table.symlink_to("pipe")
    reader = os.open(table, os.O_RDWR)  # so that nobody waits for the other end
    monkeypatch.setattr("course_lib.commands.cli.lessons", lambda: COURSE)
    monkeypatch.setattr(
        "course_lib.commands.grading.grade", lambda paths, limits, **_: [notebook(str(paths[0]), passed("b.z"))]
    )

    assert cli.main(["check", "ann/04-second.ipynb", "--gradebook", str(gradebook), "--csv", str(table)]) == 0
    assert gradebook.read_text() == "\ufeffStudent,ID,SIS Login ID,Section,04-second\nann,,ann,,100.0\n"
    assert table.is_fifo() and "ann/04-second.ipynb,yes,b.z,passed" in os.read(reader, 100_000).decode()
    os.close(reader)
