"""The course map: what is done, and what to do next, as text, in a notebook and in the terminal."""

from pathlib import Path

import pytest

from course_lib.commands import cli
from course_lib.progress import Progress
from course_lib.progress.course_map import CourseMap
from course_lib.syllabus import Lesson, lessons
from course_lib.widgets.map import ShownMap
from tests.progress.test_progress import answer

LESSONS = (
    Lesson(
        path=Path("01-ranks.ipynb"),
        title="01 · Ranks",
        minutes=60,
        exercises={"ranks.hello": "Say hello", "ranks.ring": "A ring"},
        quizzes={"ranks": ("who", "why")},
    ),
    Lesson(path=Path("02-a & b.ipynb"), title="02 · A & <b>", minutes=10, exercises={"ab.step": "A step"}, quizzes={}),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def progress(home: Path) -> Progress:
    return Progress()


def solve(progress: Progress, *exercises: str) -> None:
    for name in exercises:
        progress.finish_attempt(progress.begin_attempt(name, "def f(): ..."), "passed", [])


def drawn(progress: Progress) -> CourseMap:
    return CourseMap(LESSONS, progress.summary())


def items(progress: Progress) -> list[str]:
    """The first lesson's items: mark, title, state and detail."""
    lesson = drawn(progress).stops[0]
    return [f"{item.shape} {item.title}: {item.state}; {item.detail}" for item in lesson.items]


def test_the_map_marks_the_short_route(progress: Progress) -> None:
    stops = CourseMap(lessons(), progress.summary()).stops
    marked = [stop.lesson.title[:2] for stop in stops if "short route" in stop.standing]
    assert marked == ["00", "01", "02"]


def test_the_map_is_a_line_a_lesson_and_what_comes_next(progress: Progress) -> None:
    solve(progress, "ranks.hello")

    assert str(drawn(progress)).splitlines() == [
        "██████░░░░░░░░░░░░░░   01 · Ranks (1 of 3 done, about 40 minutes left)",
        "░░░░░░░░░░░░░░░░░░░░   02 · A & <b> (0 of 1 done, about 10 minutes left)",
        "",
        "Continue: A ring, in 01-ranks.ipynb",
    ]
    solve(progress, "ab.step")
    assert str(drawn(progress)).splitlines()[1] == "████████████████████ ✓ 02 · A & <b> (1 of 1 done)"


def test_each_exercise_and_quiz_has_its_state(progress: Progress) -> None:
    solve(progress, "ranks.hello")
    progress.hint_taken("ranks.ring", 1)
    answer(progress, "ranks", "who", correct=True)
    answer(progress, "ranks", "why", correct=False)

    assert items(progress) == [
        "✓ Say hello: passed; 1 attempt, 0 hints",
        "◐ A ring: not started; 0 attempts, 1 hint",
        "◐ Quiz: 1 of 2 right; ",
    ]


def test_next_is_the_first_that_is_not_done_quizzes_included(progress: Progress) -> None:
    solve(progress, "ranks.hello", "ranks.ring")
    assert drawn(progress).advice == "Continue: Quiz, in 01-ranks.ipynb"

    answer(progress, "ranks", "who", correct=True)
    assert drawn(progress).advice == "Continue: Quiz, in 01-ranks.ipynb"

    answer(progress, "ranks", "why", correct=True)
    assert drawn(progress).advice == "Continue: A step, in 02-a & b.ipynb"

    solve(progress, "ab.step")
    assert drawn(progress).advice == "Everything is done."
    assert CourseMap((), progress.summary()).advice == "There are no lessons here."


def test_practice_takes_no_tick_away(progress: Progress) -> None:
    for question in ("who", "why"):
        answer(progress, "ranks", question, correct=True)
    answer(progress, "ranks", "who", correct=False, attempt=1)
    assert items(progress)[2] == "✓ Quiz: 2 of 2 right; "


def test_answers_to_a_question_that_was_removed_do_not_count(progress: Progress) -> None:
    for question in ("who", "removed"):
        answer(progress, "ranks", question, correct=True)
    assert items(progress)[2] == "◐ Quiz: 1 of 2 right; "


def test_in_a_notebook_every_lesson_is_a_link_and_nothing_becomes_html(progress: Progress) -> None:
    shown = ShownMap(drawn(progress), notice="The file <x> is full.")
    html = shown._repr_html_()

    assert '<a href="02-a%20%26%20b.ipynb">02 · A &amp; &lt;b&gt;</a>' in html
    assert '<a class="course-primary" href="01-ranks.ipynb">Continue</a> Say hello, in 01 · Ranks' in html
    assert html.count('class="course-primary"') == 1
    assert '<progress max="3" value="0" aria-label="0 of 3 done, about 60 minutes left">' in html
    assert '<li><span aria-hidden="true">○</span> A step: not started</li>' in html
    assert "The file &lt;x&gt; is full." in html
    assert repr(shown) == f"The file <x> is full.\n\n{drawn(progress)}"


# In the terminal


def test_the_terminal_shows_the_courses_own_lessons(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    solve(Progress(), "start.first")
    assert cli.main(["progress"]) == 0
    out = capsys.readouterr().out

    assert out == f"{CourseMap(lessons(), Progress().summary())}\n"
    assert "00 · Start here (1 of 2 done, about 10 minutes left, on the short route)\n" in out
    assert out.count("Quiz") == 1
    assert out.endswith("Continue: Quiz, in 00-start-here.ipynb\n")


def test_a_damaged_record_is_told_and_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Progress().hint_taken("start.first", 1)
    home.joinpath("progress.sqlite3").write_bytes(b"this is no database" * 100)

    assert cli.main(["progress"]) == 1
    assert "is damaged" in capsys.readouterr().err
    assert home.joinpath("progress.sqlite3.damaged-1").exists()
