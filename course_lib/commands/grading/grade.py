"""Grade one notebook: run it, check its functions, and add the exercises of its lesson that it lacks."""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ipykernel.compiler import get_file_name

from ...errors import CourseError
from ...syllabus import Lesson, lessons, read_cells
from .judge import judge
from .kernel import Ran, handed_in, run
from .limits import Limits
from .report import Grade, Graded, best

LONGEST_CELL = 100_000  # characters; to hash more takes too long


def grade(
    paths: Sequence[Path], limits: Limits | None = None, *, jobs: int = 1, done: Iterable[Graded] = ()
) -> Iterator[Graded]:
    """Grade notebooks, in their order. No notebook can prevent the grading of the others.

    Args:
        paths: the notebooks.
        limits: for each.
        jobs: how many are graded at a time.
        done: grades of an earlier run, which was stopped: a notebook with the same content is not graded again.
    """
    limits = limits or Limits()
    grade_one = partial(_graded_or_why_not, lessons(), limits, {(one.notebook, one.digest): one for one in done})
    pool = ThreadPoolExecutor(jobs)
    try:
        yield from pool.map(grade_one, paths)
    finally:
        limits.stopped.set()  # after an interrupt, nothing that notebooks started goes on
        pool.shutdown(cancel_futures=True)


def _graded_or_why_not(
    course: Iterable[Lesson], limits: Limits, done: Mapping[tuple[str, str], Graded], path: Path
) -> Graded:
    digest = ""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        graded = done.get((str(path), digest)) or _graded(path, course, limits)
    except (CourseError, OSError) as error:
        graded = Graded(notebook=str(path), ended=str(error))
    except Exception as error:  # whatever happens, the next notebook is graded
        graded = Graded(notebook=str(path), ended=f"it could not be graded ({type(error).__name__}: {error})")
    return replace(graded, digest=digest)


def _graded(path: Path, course: Iterable[Lesson], limits: Limits) -> Graded:
    cells = [cell for cell in read_cells(path) if cell["cell_type"] == "code"]
    sources = [cell["source"] for cell in cells]
    with _scratch() as scratch:
        (scratch / "work").mkdir()
        shutil.copy(path, scratch / "work")
        ran = run(sources, scratch, limits)
        judged = best(judge(ran.solutions, scratch, limits))
    own = list(dict.fromkeys(name for source in sources for name in handed_in(source)))
    grades = [judged.get(name) or _not_judged(name, name in own, ran) for name in _expected(path, own, course)]
    by_number = partial(_by_number, _files(sources))
    return Graded(
        notebook=str(path),
        exercises=tuple(replace(one, observed=by_number(one.observed)) for one in grades),
        ended=ran.ended or ("" if grades else "there is no exercise in it, and it is no lesson of the course"),
        remarks=tuple(map(by_number, _raised(ran, cells))),
    )


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a temporary folder. What cannot be removed from it at the end stays, such as folders nested 1,000 deep."""
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    try:
        yield Path(folder.name)
    finally:
        with suppress(Exception):  # RecursionError
            folder.cleanup()


def _files(sources: Iterable[str]) -> dict[str, int]:
    """Return the number of each code cell by its file's name: a kernel makes that name from the cell's text."""
    texts = [source[:LONGEST_CELL].encode(errors="replace").decode() for source in sources]
    return {Path(get_file_name(text)).name: number for number, text in reversed([*enumerate(texts, 1)])}


def _by_number(files: Mapping[str, int], text: str) -> str:
    """Return the text of an error with numbers of cells instead of the names of their files."""
    return re.sub(r"(\d+\.py),?(?= line)", lambda it: f"code cell {files[it[1]]}," if it[1] in files else it[0], text)


def _raised(ran: Ran, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a remark on each cell that raised without being marked as one that does."""
    return [
        f"code cell {number} raised {error}"
        for number, error in ran.raised.items()
        if "raises-exception" not in str(cells[number - 1].get("metadata"))
    ]


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
    without = f"its cell was not reached: {ran.ended}" if ran.ended else "no function was found after its cell had run"
    observed = ran.problems.get(name) or without
    return Grade(exercise=name, status="error", observed=observed)
