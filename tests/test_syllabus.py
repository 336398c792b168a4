"""What is known of the lessons comes from their notebooks."""

import json
from pathlib import Path

import pytest

from course_lib import exercises, quizzes
from course_lib.errors import CourseError
from course_lib.syllabus import Lesson, lessons, named, questions, read_cells


def write(folder: Path, name: str, *cells: tuple[str, str | list[str]]) -> Path:
    """A notebook of these cells: kind and text."""
    notebook = {"cells": [{"cell_type": kind, "source": source} for kind, source in cells], "metadata": {}}
    path = folder / name
    path.write_text(json.dumps(notebook))
    return path


def test_a_lesson_is_read_from_its_notebook(tmp_path: Path) -> None:
    write(tmp_path, "02-memory.ipynb", ("code", "1 / 0"))
    path = write(
        tmp_path,
        "01-ranks.ipynb",
        ("markdown", ["# 01 · Ranks\n", "\n", "| Time | 2 hours |\n", "## 1. What is a rank?"]),
        ("code", '@exercise("ranks.hello")\ndef hello(): ...'),
        ("code", ['exercise("ranks.hello").hint()\n', '@course_lib.exercise("ranks.bye")\ndef bye(): ...']),
        ("markdown", '`quiz("not code")`'),
        ("code", 'quiz("ranks")'),
    )
    write(tmp_path, "notes.ipynb", ("code", 'quiz("mine")'))

    first, second = lessons(tmp_path)
    assert first == Lesson(
        path=path,
        title="01 · Ranks",
        minutes=120,
        exercises={"ranks.hello": "Say hello by rank", "ranks.bye": "ranks.bye"},
        quizzes={"ranks": questions("ranks")},
    )
    assert (second.title, second.minutes) == ("02-memory", 0)


def test_a_folder_that_is_not_there_has_no_lessons(tmp_path: Path) -> None:
    assert lessons(tmp_path / "nowhere") == ()


def test_names_are_read_from_calls_alone() -> None:
    source = '# exercise("a")\ntext = \'exercise("b")\'\nexercise(name)\nexercise()\nexercise("d")(exercise("c"))'
    assert named(source, "exercise") == ["d", "c"]
    assert named("!pip install x", "exercise") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not json", "is not a notebook that Jupyter has saved (it is no JSON from line 1, column 1 on"),
        ("[]", "is not a notebook that Jupyter has saved (it has no list of cells)"),
        ('{"cells": 3}', "is not a notebook that Jupyter has saved (it has no list of cells)"),
        ('{"nbformat": 3, "worksheets": []}', "is a notebook in an old format."),
        (
            '{"cells": [{"cell_type": "code", "source": "1"}, {"cell_type": "code", "source": 3}]}',
            "(cell 2 has no text)",
        ),
        ('{"cells": [{"cell_type": "code"}]}', "(cell 1 has no text)"),
        ('{"cells": [{"cell_type": "code", "source": ["1", 2]}]}', "(cell 1 has no text)"),
        ('{"cells": [{"source": "1"}]}', "(cell 1 has no type)"),
        ('{"cells": [3]}', "(cell 1 has no type)"),
    ],
)
def test_what_is_no_notebook_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "x.ipynb"
    path.write_text(text)
    with pytest.raises(CourseError, match="save it again") as raised:
        read_cells(path)
    assert told in str(raised.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=r"x\.ipynb cannot be read: No such file"):
        read_cells(tmp_path / "x.ipynb")


def test_the_courses_own_lessons_hold_every_exercise_and_quiz_that_is_declared() -> None:
    course = lessons()
    titles = {name: title for lesson in course for name, title in lesson.exercises.items()}
    assert titles == {name: exercises.get(name).title for name in exercises.names()}
    assert sum(len(lesson.exercises) for lesson in course) == len(titles)
    assert all(lesson.minutes for lesson in course)
    assert {name: ids for lesson in course for name, ids in lesson.quizzes.items()} == {
        name: tuple(question.id for question in quizzes.get(name).questions) for name in quizzes.names()
    }
    assert questions("no-such-quiz") == ()
