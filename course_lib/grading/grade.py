"""Grades one notebook: runs it, checks what it handed in, and adds what its lesson has and it has not."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CourseError
from ..lessons import Lesson, lessons, parse_notebook
from .judge import judge
from .kernel import Ran, claimed, handed_in, run
from .limits import Limits
from .report import Grade, Graded


def grade(paths: Sequence[Path], limits: Limits | None = None) -> Iterator[Graded]:
    """Grade notebooks one after the other. None of them can keep the others from being graded.

    All are read before the first one runs, so that none can change another.
    """
    texts = [(path, _text(path)) for path in paths]
    course = lessons()
    for path, text in texts:
        try:
            graded = _graded(path, text, course, limits or Limits())
        except CourseError as error:
            graded = Graded(notebook=str(path), ended=str(error))
        except Exception as error:  # whatever is in this notebook, the next one is graded
            graded = Graded(notebook=str(path), ended=f"it could not be graded ({type(error).__name__}: {error})")
        yield graded


def _text(path: Path) -> bytes | None:
    """What is in the file; None where it cannot be read, or is a pipe or a device, which may never end."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


def _graded(path: Path, text: bytes | None, course: Iterable[Lesson], limits: Limits) -> Graded:
    if text is None:
        raise CourseError("the file cannot be read: name a notebook that is there")
    notebook = parse_notebook(text, path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    # A learner's code may leave processes that still write: what they leave behind is none of ours.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        copy = scratch / "work" / path.name
        copy.parent.mkdir()
        copy.write_bytes(text)
        ran = run(sources, scratch, limits)
        touched = [] if _holds(copy, text) else ["it changed or deleted its own file while it ran"]
        judged = {grade.exercise: grade for grade in judge(ran.solutions, scratch, limits)}
    own = list(dict.fromkeys(name for source in sources for name in handed_in(source)))
    grades = [judged.get(name) or _not_judged(name, name in own, ran) for name in _expected(path, own, course)]
    claims = ran.claims | claimed(json.dumps([cell.get("outputs") for cell in cells]), own)
    return Graded(
        notebook=str(path),
        exercises=tuple(_remarked(grade, claims) for grade in grades),
        ended=ran.ended or ("" if grades else "there is no exercise in it, and it is no lesson of the course"),
        remarks=(*_raised(ran, cells), *_another_language(notebook.get("metadata")), *touched),
    )


def _holds(path: Path, text: bytes) -> bool:
    """Whether `text` is what is in the file; also where a learner's code has put a pipe or a terabyte in its place."""
    return path.is_file() and path.stat().st_size == len(text) and _text(path) == text


def _raised(ran: Ran, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """A remark on each cell that raised, and was not marked as one that does."""
    return [
        f"code cell {number} raised {error}"
        for number, error in ran.raised.items()
        if "raises-exception" not in str(cells[number - 1].get("metadata"))
    ]


def _another_language(metadata: Any) -> list[str]:
    """A remark on a notebook that says that it is not Python."""
    with suppress(AttributeError):  # nothing says that metadata are what they should be
        language = metadata.get("kernelspec", {}).get("language", "python")
        if language != "python":
            return [f"it is a notebook of {language}, and was run as one of Python"]
    return []


def _expected(path: Path, own: Sequence[str], course: Iterable[Lesson]) -> list[str]:
    """The exercises of the lesson that the notebook is, by its name or by what is in it, and any others in it."""
    of_the_lesson = [
        name
        for lesson in course
        if lesson.path.name == path.name or not set(own).isdisjoint(lesson.exercises)
        for name in lesson.exercises
    ]
    return list(dict.fromkeys([*of_the_lesson, *own]))


def _not_judged(name: str, in_notebook: bool, ran: Ran) -> Grade:
    if not in_notebook:
        return Grade(exercise=name, status="missing", observed="the notebook has no cell for it")
    observed = ran.problems.get(name) or f"its cell was not reached: {ran.ended}"
    return Grade(exercise=name, status="error", observed=observed)


def _remarked(grade: Grade, claims: set[str]) -> Grade:
    if grade.status == "passed" or grade.exercise not in claims:
        return grade
    return replace(grade, remark="an output of the notebook says passed")
