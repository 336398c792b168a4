"""Grade one notebook: run it, check its functions, and add the exercises of its lesson that it lacks."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CourseError
from ..progress import Lesson, lessons, parse_notebook
from .judge import judge
from .kernel import Ran, claimed, handed_in, run
from .limits import Limits
from .report import Grade, Graded

LARGEST_BYTES = 200 * 10**6  # ten times the limit on output: Jupyter did not save a larger file


def grade(paths: Sequence[Path], limits: Limits | None = None) -> Iterator[Graded]:
    """Grade notebooks one after the other. No notebook can prevent the grading of the others.

    All are read before the first one runs, so that none can change another.
    """
    texts = [(path, _text(path)) for path in paths]
    course = lessons()
    for path, text in texts:
        try:
            graded = _graded(path, text, course, limits or Limits())
        except CourseError as error:
            graded = Graded(notebook=str(path), ended=str(error))
        except Exception as error:  # whatever happens, the next notebook is graded
            graded = Graded(notebook=str(path), ended=f"it could not be graded ({type(error).__name__}: {error})")
        yield graded


def _text(path: Path) -> bytes | str:
    """Return the file's content, or why it cannot be read: a pipe or a device may never end."""
    try:
        if path.is_dir():
            return f"it is a folder: name the notebooks in it, {path / '*.ipynb'}"
        size_bytes = path.stat().st_size
        if not path.is_file():
            return "it is a pipe or a device, and no file: name a notebook"
        if size_bytes > LARGEST_BYTES:
            return f"it has {size_bytes / 1e6:.0f} MB, and {LARGEST_BYTES / 1e6:g} are read: clear its outputs"
        return path.read_bytes()
    except OSError as error:
        return f"it cannot be read ({error.strerror}): name a notebook that is there"


def _graded(path: Path, text: bytes | str, course: Iterable[Lesson], limits: Limits) -> Graded:
    if isinstance(text, str):
        raise CourseError(text)
    notebook = parse_notebook(text, path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # Half a surrogate pair becomes a question mark: JSON can hold it, and a kernel cannot receive it.
    sources = ["".join(cell["source"]).encode("utf-8", "replace").decode() for cell in cells]
    with _scratch() as scratch:
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


@contextmanager
def _scratch() -> Iterator[Path]:
    """Create a folder for a notebook. What cannot be deleted, such as folders nested thousands deep, stays."""
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    try:
        yield Path(folder.name)
    finally:
        with suppress(RecursionError):
            folder.cleanup()


def _holds(path: Path, text: bytes) -> bool:
    """Return whether the file contains `text`. A learner's code may have replaced it with a pipe or a terabyte."""
    return path.is_file() and path.stat().st_size == len(text) and _text(path) == text


def _raised(ran: Ran, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a remark on each cell that raised without being marked as one that does."""
    return [
        f"code cell {number} raised {error}"
        for number, error in ran.raised.items()
        if "raises-exception" not in str(cells[number - 1].get("metadata"))
    ]


def _another_language(metadata: Any) -> list[str]:
    """Return a remark if the notebook declares a language other than Python."""
    with suppress(AttributeError):  # metadata may have any form
        language = metadata.get("kernelspec", {}).get("language", "python")
        if language != "python":
            return [f"it is a notebook of {language}, and was run as one of Python"]
    return []


def _expected(path: Path, own: Sequence[str], course: Iterable[Lesson]) -> list[str]:
    """Return the exercises of the notebook's lesson, found by name or by content, and any others in the notebook."""
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
