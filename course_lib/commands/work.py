"""The learner's own copies of the lessons: `course lab` makes them and keeps them current.

A copy has no outputs that answer a prediction: its cells show them when the learner runs them. `.shipped` holds each
lesson as it was when its copy was last brought up to date. What differs from it was written by the learner, and stays.

A copy is signed, as `jupyter trust` does: JupyterLab shows scripts and styles of saved outputs only where it trusts the
notebook. A copy that a later version came into is signed again only if it was trusted before: the outputs that it keeps
may be somebody else's.
"""

import re
import sqlite3
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from difflib import SequenceMatcher
from importlib import import_module
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.sign import NotebookNotary
from nbformat.warnings import DuplicateCellId, MissingIDFieldWarning

from ..errors import CourseError
from ..syllabus import NOTEBOOKS
from .lab import SHIPPED, folder

IMPORT = ("import ", "from ")


def update(lessons: Path = NOTEBOOKS, work: Path | None = None) -> Path:
    """Copy the lessons that `work` does not have, and bring later versions of the others in. Return `work`.

    Prints which cells have a later text that was not taken, because the learner had changed them.

    Raises:
        CourseError: a copy cannot be read or written.
    """
    work = work or folder()
    trusted: list[NotebookNode] = []
    try:
        for lesson in sorted(lessons.glob("[0-9][0-9]-*.ipynb")):
            trusted += _updated(lesson, work)
    finally:
        _trust(trusted)
    return work


def _updated(lesson: Path, work: Path) -> list[NotebookNode]:
    """Bring one copy up to date, and return it if it is to be trusted."""
    copy, shipped = work / lesson.name, work / SHIPPED / lesson.name
    for place in (copy, shipped):
        for other_number in place.parent.glob(f"[0-9][0-9]{lesson.name[2:]}"):
            if not place.exists():
                _move(other_number, place)
    before = _read(shipped) if shipped.exists() else None
    new, trusted = opened(without_answers(_read(lesson))), []
    if not copy.exists():
        _write(new, copy)
        trusted = [new]
    elif before is not None and before != new:
        mine = with_ids(_read(copy), before)
        both = merged(before, mine, new)
        trusted = [both] if mine.cells == before.cells or _is_trusted(mine) else []
        _write(both, copy)
        for cell in not_taken(before, both, new):
            text = cell.source.partition("\n")[0]
            print(f"{lesson.name}: your version of this cell stays, and the lesson has a later one: {text}")
    if before != new:
        _write(new, shipped)
    return trusted


def without_answers(lesson: NotebookNode) -> NotebookNode:
    """Return a copy of the lesson whose folded outputs, the answers to predictions, are gone."""
    lesson = deepcopy(lesson)
    for cell in lesson.cells:
        if cell.metadata.get("jupyter", {}).pop("outputs_hidden", None):
            cell.outputs, cell.execution_count = [], None
            if not cell.metadata["jupyter"]:
                del cell.metadata["jupyter"]
    return lesson


def opened(lesson: NotebookNode) -> NotebookNode:
    """Return the lesson with this Python as its kernel's language, as JupyterLab saves it.

    JupyterLab writes that into each notebook that it opens. Without it, a copy would have changes to save at once.
    """
    version = sys.version.split()[0]
    language = {
        "name": "python", "version": version, "mimetype": "text/x-python", "file_extension": ".py",
        "codemirror_mode": {"name": "ipython", "version": sys.version_info[0]},
        "pygments_lexer": "ipython3", "nbconvert_exporter": "python",
    }  # fmt: skip
    return NotebookNode(lesson | {"metadata": lesson.metadata | {"language_info": language}})


def with_ids(mine: NotebookNode, before: NotebookNode) -> NotebookNode:
    """Return `mine`, with the ids of `before` if a program that saved it has dropped all of them.

    A cell gets the id of the cell that has its source, or that is at its place between two such cells.
    """
    if {cell.id for cell in mine.cells}.isdisjoint(cell.id for cell in before.cells):
        own, shipped = ([cell.source for cell in notebook.cells] for notebook in (mine, before))
        for _, start, end, first, last in SequenceMatcher(None, own, shipped, autojunk=False).get_opcodes():
            for cell, known in zip(mine.cells[start:end], before.cells[first:last], strict=False):
                if cell.cell_type == known.cell_type:
                    cell.id = known.id
    return mine


def merged(before: NotebookNode, mine: NotebookNode, new: NotebookNode) -> NotebookNode:
    """Return `new` with all that `mine` has and `before`, from which it was made, has not.

    A cell that the learner changed stays as it is, also where the lesson has changed it or has it no more; a cell that
    neither changed keeps its outputs. Imports that `new` has no more stay, after its own, and so do the learner's. A
    name of the course stays if the course still has it and a cell that the learner changed uses it.
    """
    shipped = {cell.id: cell.source for cell in before.cells}
    changed = "\n".join(cell.source for cell in mine.cells if cell.source != shipped.get(cell.id))
    own = {cell.id: cell for cell in mine.cells}
    cells = []
    for cell in new.cells:
        if cell.id in own:
            cells.append(_taken(own[cell.id], shipped.get(cell.id, ""), cell, changed))
        elif cell.id not in shipped:
            cells.append(cell)
    kept = {cell.id for cell in cells}
    for place, cell in enumerate(mine.cells):
        if cell.id not in kept and cell.source != shipped.get(cell.id):
            earlier = {other.id for other in mine.cells[:place]}
            last = max((at for at, other in enumerate(cells) if other.id in earlier), default=-1)
            cells.insert(last + 1, cell)
            kept.add(cell.id)
    return NotebookNode(new | {"cells": cells})


def _taken(mine: NotebookNode, shipped: str, new: NotebookNode, changed: str) -> NotebookNode:
    of_course = [line for line in shipped.splitlines() if "course_lib" in line]
    of_lesson = {*new.source.splitlines(), *of_course, ""}
    added = [line for line in mine.source.splitlines() if line.strip() not in of_lesson]
    if mine.source != new.source and all(line.startswith(IMPORT) for line in [new.source, *added]):
        imports = "\n".join([new.source, *added])
        used = filter(None, (_still_used(line, imports, changed) for line in of_course))
        return NotebookNode(new | {"source": "\n".join([imports, *used])})
    return new if mine.source == shipped != new.source else mine


def _still_used(line: str, imports: str, changed: str) -> str:
    """Return the import `line` with the names that `changed` uses, `imports` has not, and the course still has."""
    found = re.fullmatch(r"from (course_lib[\w.]*) import ([\w, ]+?)( *#.*)?", line)
    words = set(re.findall(r"\w+", changed)).difference(re.findall(r"\w+", imports))
    names = [name for name in found[2].split(", ") if name.split()[-1] in words] if found else []
    if found and names:
        with suppress(ImportError, CourseError):
            module = import_module(found[1])
            names = [name for name in names if hasattr(module, name.split()[0])]
            return f"from {found[1]} import {', '.join(names)}" if names else ""
    return ""


def not_taken(before: NotebookNode, both: NotebookNode, new: NotebookNode) -> Iterator[NotebookNode]:
    """Yield the cells of `new` that have a different text in `before`, and again in `both`."""
    shipped, taken = ({cell.id: cell.source for cell in notebook.cells} for notebook in (before, both))
    for cell in new.cells:
        now = taken.get(cell.id, cell.source)
        if shipped.get(cell.id, cell.source) != cell.source and not now.startswith(cell.source):
            yield cell


def _is_trusted(notebook: NotebookNode) -> bool:
    with suppress(OSError, sqlite3.Error), NotebookNotary() as notary:
        return bool(notary.check_signature(notebook))
    return False


def _trust(notebooks: Sequence[NotebookNode]) -> None:
    try:
        with NotebookNotary() as notary:
            for notebook in notebooks:
                notary.sign(notebook)
    except (OSError, sqlite3.Error) as error:
        print(f"The copies could not be signed ({error}): some saved outputs show only after you have run their cell.")


def _move(path: Path, to: Path) -> None:
    try:
        path.rename(to)
    except OSError as error:
        raise CourseError(f"{path} cannot be moved to {to.parent}: {error.strerror}. Move it.") from error


def _read(path: Path) -> NotebookNode:
    try:
        with warnings.catch_warnings():  # nbformat gives such cells new ids
            warnings.simplefilter("ignore", DuplicateCellId)
            warnings.simplefilter("ignore", MissingIDFieldWarning)
            notebook: NotebookNode = nbformat.read(path, as_version=4)
        if notebook.nbformat_minor < 5:  # as Colab saves it: its cells have no ids
            notebook = nbformat.v4.upgrade(notebook)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError) as error:
        raise CourseError(
            f"{path} cannot be read as a notebook: {error}. Move it to a different folder, and run the command again: "
            "it makes a new one."
        ) from error
    return notebook


def _write(notebook: NotebookNode, path: Path) -> None:
    new = path.with_name(f"{path.name}.new")  # a full disk leaves the learner's copy as it was
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, new)
        new.replace(path.resolve())  # a link stays one
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise CourseError(
            f"{path} cannot be written: {error.strerror}. Copy the lessons to a folder of your own, and open them with "
            "course lab --notebooks FOLDER."
        ) from error
