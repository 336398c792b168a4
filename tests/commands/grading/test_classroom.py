"""The grades of a class, as Canvas and Moodle import them and as a page."""

import csv
import io
import os
from pathlib import Path

import pytest

from course_lib.commands import cli
from course_lib.commands.grading import Grade, Graded, as_gradebook, as_json, as_page, from_json
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
    assert "it is 4" not in as_page(graded, COURSE)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["in/ann/Copy of 03-first.ipynb", "in/bob/Copy of Copy of 07-first.ipynb"], ["ann", "bob"]),
        (["in/ann/sharded/03-first.ipynb", "in/bob/sharded/03-first.ipynb"], ["ann", "bob"]),
        (["in/01-tanaka.ipynb", "in/02-sato.ipynb"], ["01-tanaka", "02-sato"]),
        (["in/03-first-ann.ipynb", "in/03-first_bob.ipynb"], ["03-first-ann", "03-first_bob"]),
        (["in/ann/03-first-Copy1.ipynb", "in/bob/03-first copy.ipynb"], ["ann", "bob"]),
        (["in/ann/solution.ipynb", "in/bob/solution.ipynb"], ["ann/solution", "bob/solution"]),
        ([f"in/{name}/course-main/notebooks/03-first.ipynb" for name in ("ann", "bob", "cid")], ["ann", "bob", "cid"]),
        (["in/ann/late/03-first.ipynb", "in/bob/late/03-first.ipynb", "in/ann/03-first.ipynb"], ["ann", "bob"]),
        (["in/ann/ps1/solution.ipynb", "in/bob/work/ps1/solution.ipynb"], ["ann/solution", "bob/solution"]),
        (["in/1/ann/03-first.ipynb", "in/1/bob/03-first.ipynb", "in/2/ann/03-first.ipynb"], ["1/ann", "2/ann", "bob"]),
        (
            [f"in/{one}/03-first.ipynb" for one in ("mon/sub/ann/ps1", "mon/sub/bob/ps1", "tue/sub/ann/ps1")],
            ["bob", "mon/sub/ann", "tue/sub/ann"],
        ),
    ],
)
def test_notebooks_of_two_students_are_two_rows(files: list[str], names: list[str]) -> None:
    assert [row["Student"] for row in read([notebook(file, passed("a.x")) for file in files])] == names


def test_a_lesson_in_the_top_folder_is_named_after_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = ["/03-first.ipynb", "../ann/03-first.ipynb", "/bob/03-first.ipynb", f"../{tmp_path.name}/04-second.ipynb"]
    names = [row["Student"] for row in read([notebook(file, passed("a.x")) for file in files])]
    assert names == ["03-first", "ann", "bob", tmp_path.name]


def test_rows_are_in_alphabetical_order_whatever_the_accents() -> None:
    names = ["Ann", "çelik", "Costa", "émile", "hoang", "Zoe"]
    rows = read([notebook(f"in/{name}.ipynb", passed("a.x")) for name in reversed(names)])
    assert [row["Student"] for row in rows] == names


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("in/ann/bob.ipynb", ["ann", "ann/bob", "bob"]),
        ("in/cid/bob.ipynb", ["ann", "bob", "cid/bob"]),
        ("in/bob/bob.ipynb", ["ann", "bob"]),
        ("in/bob.ipynb", ["ann", "bob"]),
    ],
)
def test_a_file_named_after_another_students_folder_is_a_row_of_its_own(file: str, names: list[str]) -> None:
    graded = [notebook(path, passed("a.x")) for path in ("in/ann/03-first.ipynb", "in/bob/work/03-first.ipynb")]
    assert [row["Student"] for row in read([*graded, notebook(file, passed("b.z"))])] == names


def test_different_lessons_of_one_name_in_two_folders_are_one_row() -> None:
    second = notebook("in/04/ann.ipynb", passed("b.z"), Grade(exercise="a.x", status="missing"))
    (ann,) = read([notebook("in/03/ann.ipynb", passed("a.x"), passed("a.y")), second])
    assert list(ann.values()) == ["ann", "", "ann", "", "100.0", "100.0"]


@pytest.mark.parametrize("layout", ["in/{student}/{lesson}/{file}.ipynb", "in/{lesson}/{student}/{file}.ipynb"])
def test_folders_of_students_can_hold_those_of_lessons_or_lie_in_them(layout: str) -> None:
    first = [layout.format(student=name, lesson="lesson03", file="03-first") for name in ("ann", "bob")]
    second = notebook(layout.format(student="ann", lesson="lesson04", file="04-second"), passed("b.z"))
    ann, bob = read([*(notebook(file, passed("a.x"), passed("a.y")) for file in first), second])
    assert list(ann.values()) == ["ann", "", "ann", "", "100.0", "100.0"]
    assert list(bob.values()) == ["bob", "", "bob", "", "100.0", ""]


def test_a_notebook_that_cannot_be_read_has_no_grade_and_its_reason_is_on_the_page() -> None:
    graded = [notebook("ann/03-first.ipynb", ended="it is not a notebook")]

    (ann,) = read(graded)
    assert list(ann) == ["Student", "ID", "SIS Login ID", "Section"]
    assert "<p>Ended early: it is not a notebook</p>" in as_page(graded, COURSE)


def test_a_page_has_the_most_frequent_mistake_first() -> None:
    graded = [
        notebook("ann/03-first.ipynb", slip("a.x", "rare", "a rare result"), slip("a.y", "common")),
        notebook("ben/03-first.ipynb", passed("a.x"), slip("a.y", "common")),
    ]

    page = as_page(graded, COURSE)
    assert "03 · First: 1 of 2 <progress" in page
    assert "<td>Y (03 · First)<td><details><summary>2</summary>ann, ben</details><td>it is 4" in page
    assert page.index("it is 4") < page.index("a rare result")


def test_students_without_a_known_mistake_share_a_row_only_if_the_check_observed_the_same() -> None:
    observed = {"ann": "its cell did not end", "ben": "it returned None", "eve": "it returned None"}
    graded = [notebook(f"{name}/03-first.ipynb", slip("a.x", "", text)) for name, text in observed.items()]

    page = as_page(graded, COURSE)
    assert "<summary>2</summary>ben, eve</details><td>it returned None" in page
    assert "<summary>1</summary>ann</details><td>its cell did not end" in page


def test_a_name_or_an_observation_is_neither_markup_nor_a_formula() -> None:
    graded = [notebook("=1+1<b>/03-first.ipynb", slip("a.x", "", "<script>alert()</script>"))]

    (student,) = read(graded)
    assert student["Student"] == student["SIS Login ID"] == "'=1+1<b>"
    page = as_page(graded, COURSE)
    assert "=1+1&lt;b&gt;" in page and "&lt;script&gt;" in page
    assert "<b>" not in page and "<script" not in page


def test_the_command_writes_all_and_keeps_earlier_grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradebook, page, record = tmp_path / "grades.csv", tmp_path / "class.html", tmp_path / "all.json"
    bob = notebook("bob/04-second.ipynb", slip("b.z", ""))
    record.write_text(as_json([bob]))
    os.mkfifo(tmp_path / "pipe")
    page.symlink_to("pipe")
    reader = os.open(page, os.O_RDWR)  # so that nobody waits for the other end
    monkeypatch.setattr("course_lib.commands.cli.lessons", lambda: COURSE)
    monkeypatch.setattr(
        "course_lib.commands.grading.grade", lambda paths, limits, **_: [notebook(str(paths[0]), passed("b.z"))]
    )
    reports = ["--gradebook", str(gradebook), "--page", str(page), "--json", str(record)]

    assert cli.main(["check", "ann/04-second.ipynb", "--continue", *reports]) == 0
    assert gradebook.read_text() == "\ufeffStudent,ID,SIS Login ID,Section,04-second\nann,,ann,,100.0\nbob,,bob,,0.0\n"
    assert from_json(record.read_text()) == [notebook("ann/04-second.ipynb", passed("b.z")), bob]
    assert page.is_fifo() and "04 · Second: 1 of 1 <progress" in os.read(reader, 100_000).decode()
    os.close(reader)
