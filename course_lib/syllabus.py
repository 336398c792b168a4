"""Read the lessons from their notebooks: titles, minutes, exercises, quizzes. No second list could be outdated.

Titles of exercises and questions of quizzes are read from their source: importing it needs torch, which takes seconds.

    lessons()                                   # the course's own, in order
    named(source, "exercise")                   # the names that a cell's text calls `exercise` with
"""

import ast
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CourseError, json_trouble

_INSTALLED = Path(__file__).resolve().parent / "notebooks"
NOTEBOOKS = _INSTALLED if _INSTALLED.exists() else Path(__file__).resolve().parents[1] / "notebooks"
"""The lessons: in the package where it was installed from a wheel (see setup.py), else in the clone."""

_DECORATED = re.compile(r'^@(?:course_lib\.)?exercise\("(.+)"\)$', re.MULTILINE)
"""The exercise that a cell asks for; `exercise("...").answer()` borrows one from an earlier lesson."""

LESSONS = Path(__file__).resolve().parent / "lessons"

SHORT_ROUTE = ("00-start-here", "01-ranks-and-collectives", "02-where-the-memory-goes")
"""The lessons for somebody who has one day. Lesson 00 ends with a bridge over lessons 03, 04 and 06."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One notebook of the course.

    Attributes:
        path: its file.
        title: its heading.
        minutes: the time that it takes, from the table at its top; 0 without one.
        exercises: their titles by name, in order.
        quizzes: ids of questions by the name of their quiz, in order.
    """

    path: Path
    title: str
    minutes: int
    exercises: Mapping[str, str]
    quizzes: Mapping[str, tuple[str, ...]]

    @property
    def on_short_route(self) -> bool:
        """Whether the lesson is on the short route."""
        return self.path.stem in SHORT_ROUTE


def lessons(folder: Path = NOTEBOOKS) -> tuple[Lesson, ...]:
    """Return every lesson of a folder, in order; none if the folder does not exist.

    Raises:
        CourseError: a notebook cannot be read.
    """
    return tuple(read_lesson(path) for path in sorted(folder.glob("[0-9][0-9]-*.ipynb")))


def read_lesson(path: Path) -> Lesson:
    """Return the lesson in the notebook at `path`.

    Raises:
        CourseError: it cannot be read.
    """
    cells = read_cells(path)
    prose = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    heading = re.search(r"^# (.+)$", prose, re.MULTILINE)
    time = re.search(r"^\| Time \| (\d+) (minute|hour)", prose, re.MULTILINE)
    return Lesson(
        path=path,
        title=heading[1].strip() if heading else path.stem,
        minutes=int(time[1]) * {"minute": 1, "hour": 60}[time[2]] if time else 0,
        exercises={name: exercise_title(name) for source in sources for name in _DECORATED.findall(source)},
        quizzes={name: questions(name) for source in sources for name in named(source, "quiz")},
    )


def read_cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook as JSON has them, the `source` of each as one text.

    Raises:
        CourseError: there is no such file, or it is not a notebook.
    """
    try:
        notebook = json.loads(path.read_bytes())
        fields = notebook if isinstance(notebook, dict) else {}
        cells = fields.get("cells")
        if cells is None and fields.get("nbformat") in (1, 2, 3):
            raise CourseError(f"{path} is a notebook in an old format. Open it in JupyterLab and save it again.")
        if not isinstance(cells, list):
            raise TypeError("it has no list of cells")
        return [_with_text(number, cell) for number, cell in enumerate(cells, 1)]
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror}. Name a notebook that is there.") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise CourseError(
            f"{path} is not a notebook that Jupyter has saved ({json_trouble(error)}). "
            "Open it in JupyterLab and save it again."
        ) from error


def _with_text(number: int, cell: Any) -> dict[str, Any]:
    """Return a cell with its `source`, a text or a list of lines, as one text.

    Raises:
        TypeError: it has none, or no type.
    """
    fields = cell if isinstance(cell, dict) else {}
    source, missing = fields.get("source"), "text" if "cell_type" in fields else "type"
    lines = [source] if isinstance(source, str) else source
    if missing == "type" or not (isinstance(lines, list) and all(isinstance(line, str) for line in lines)):
        raise TypeError(f"cell {number} has no {missing}")
    return fields | {"cell_type": str(fields["cell_type"]), "source": "".join(lines)}


def named(source: str, function: str) -> list[str]:
    """Return the names that `source` calls `function` with, in order: "ranks.hello" for `@exercise("ranks.hello")`.

    A call that only borrows, such as `exercise("ranks.hello").answer(globals())`, is left out.
    Text that is not Python, such as a cell of shell commands, calls nothing.
    """
    if function not in source:
        return []  # parsing every cell of the course takes a second
    try:
        calls = _calls(source, function)
    except (SyntaxError, ValueError, RecursionError):
        return []
    values = [argument.value for call in calls for argument in call.args[:1] if isinstance(argument, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


@functools.cache  # the course's own source, which stays as it is
def questions(quiz: str) -> tuple[str, ...]:
    """Return the ids of a quiz's questions, in order: none if the course has no such quiz."""
    path = LESSONS / quiz / "quiz.py"
    calls = _calls(path.read_text("utf-8"), "Question") if path.exists() else []
    return tuple(ast.literal_eval(word.value) for call in calls for word in call.keywords if word.arg == "id")


@functools.cache
def exercise_title(name: str) -> str:
    """Return the title of an exercise; its name if the course has no such exercise."""
    path = LESSONS.joinpath(*name.split(".")).with_suffix(".py")
    calls = _calls(path.read_text("utf-8"), "Exercise") if path.exists() else []
    titles = [ast.literal_eval(word.value) for call in calls for word in call.keywords if word.arg == "title"]
    return titles[0] if titles else name


def _calls(source: str, function: str) -> list[ast.Call]:
    """Return the calls of `function` in `source`, in order, without those that borrow."""
    nodes = list(ast.walk(ast.parse(source)))
    borrowed = [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr == "answer"]
    calls = [node for node in nodes if isinstance(node, ast.Call) and _called(node.func) == function]
    calls = [call for call in calls if call not in borrowed]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):  # course_lib.exercise(...)
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
