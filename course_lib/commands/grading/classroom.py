"""A class: its grades as Canvas and Moodle import them, and a page for its teacher.

A notebook with the name of a lesson, such as `03-data-parallel.ipynb`, belongs to the student after whom its folder is
named, or the folder around `work` or `sharded`. If several students have a folder of one name, as in nbgrader's
`submitted/ann/lesson03/`, the folder around it is the student's. Any other file is named after its student:
`ann.ipynb`. If files of one name in two folders have the same exercise, as `solution.ipynb` of two students does, or if
a file has the name of another student's folder, the folder is part of the name. An exercise has passed if one of the
student's attempts has, in any of the student's notebooks.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os.path import abspath
from pathlib import Path
from unicodedata import normalize

from ...syllabus import Lesson
from ...widgets.style import SHEET, details
from .report import Grade, Graded, as_text, best

COPIES = ("work", "sharded")
"""The names of the folder that `course lab` makes."""

STYLE = "body { font-family: sans-serif; margin: 1em } .course-widget h2 { margin-top: 1em } th { white-space: nowrap }"


@dataclass(frozen=True, kw_only=True)
class Student:
    """One student: the grade of each exercise that was in a notebook, by name, and why notebooks ended early."""

    name: str
    grades: Mapping[str, Grade]
    ended: tuple[str, ...]

    def passed(self, lesson: Lesson) -> int | None:
        """Return how many of the lesson's exercises passed; None if no notebook has one of them."""
        found = [self.grades[name].status == "passed" for name in lesson.exercises if name in self.grades]
        return sum(found) if found else None


def students(graded: Sequence[Graded], course: Iterable[Lesson]) -> list[Student]:
    """Return the students whose notebooks were graded, by name."""
    notebooks: dict[str, list[Graded]] = defaultdict(list)
    for one, name in zip(graded, _names(graded, course), strict=True):
        notebooks[name].append(one)
    return [
        Student(
            name=name,
            grades=best(grade for one in ones for grade in one.exercises if grade.status != "missing"),
            ended=tuple(one.ended for one in ones if one.ended),
        )
        for name, ones in sorted(notebooks.items(), key=lambda entry: (_plain(entry[0]), entry[0]))
    ]


def _plain(name: str) -> str:
    """Return `name` in small letters, without accents."""
    return re.sub("[\u0300-\u036f]", "", normalize("NFD", name)).casefold()


def _names(graded: Sequence[Graded], course: Iterable[Lesson]) -> list[str]:
    """Return the name of each notebook's student."""
    titles = "|".join(re.escape(lesson.path.stem[2:]) for lesson in course)
    copied = r"-Copy\d+| copy( \d+)?| - Copy| ?\(\d+\)"
    lesson_file = re.compile(rf"(Copy of )*\d\d({titles})({copied})*")  # a release may renumber the lessons
    paths = [Path(abspath(normalize("NFC", one.notebook))) for one in graded]
    files = ["" if lesson_file.fullmatch(path.stem) else path.stem for path in paths]
    folders = _folders(graded, paths)
    shared = _shared(graded, files, folders) - {""}
    each = [*zip(paths, folders, files, strict=True)]
    owned = [(folder, parent) for path, folder, file in each if not file for parent in path.parents]
    students, around = {folder for folder, _ in owned}, {parent for _, parent in owned}
    foreign = {  # a file in one student's folder with the name of another student's, and not next to that folder
        path for path, folder, file in each if file in students - {folder, ""} and path.with_name(file) not in around
    }
    return [
        f"{folder}/{file}" if file in shared or path in foreign else file or folder or path.stem  # in the folder /
        for path, folder, file in each
    ]


def _folders(graded: Sequence[Graded], paths: Iterable[Path]) -> list[str]:
    """Return the name of the folder of each notebook's student: its own, or one around it, until no two students have
    folders of one name."""
    outwards = [[parent for parent in path.parents if parent.name not in COPIES] for path in paths]
    while True:
        inner, outer = [parents[0].name for parents in outwards], [parents[:2][-1] for parents in outwards]
        shared = _shared(graded, inner, outer)
        around = {parent for name, parent in zip(inner, outer, strict=True) if name in shared}
        if around & _shared(graded, outer, inner):  # either can be the student: `try1/ann`, or `ann/try1`
            return _with_parents(outwards, shared)
        moved = [parents[1:] if parents[1:2] and parents[1] in around else parents for parents in outwards]
        if moved == outwards:
            return inner
        outwards = moved


def _with_parents(outwards: Sequence[Sequence[Path]], shared: Container[Hashable]) -> list[str]:
    """Return the names of folders. Those that are `shared` get as few parents as tell them apart."""

    def names(depth: int) -> list[str]:
        of_each = [folders[: depth if folders[0].name in shared else 1] for folders in outwards]
        return ["/".join(folder.name for folder in reversed(folders)) for folders in of_each]

    deepest = max(map(len, outwards))
    return next(names(depth) for depth in range(2, deepest + 1) if len({*names(depth)}) == len({*names(deepest)}))


def _shared(graded: Iterable[Graded], names: Iterable[Hashable], places: Iterable[Hashable]) -> set[Hashable]:
    """Return the names that have the same exercise in two places."""
    found: dict[tuple[Hashable, str], set[Hashable]] = defaultdict(set)
    for one, name, place in zip(graded, names, places, strict=True):
        for grade in one.exercises:
            if grade.status != "missing":
                found[name, grade.exercise].add(place)
    return {name for (name, _), where in found.items() if len(where) > 1}


def as_gradebook(graded: Sequence[Graded], course: Sequence[Lesson]) -> str:
    """Return CSV with a row for each student and a column for each lesson: the percentage of exercises that passed.

    The first four columns are those that Canvas looks for. Moodle asks which column is which. A lesson without a
    notebook has no grade.
    """
    everyone = students(graded, course)
    handed_in = [lesson for lesson in course if any(one.passed(lesson) is not None for one in everyone)]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["Student", "ID", "SIS Login ID", "Section", *(lesson.path.stem for lesson in handed_in)])
    for one in everyone:
        name = as_text(one.name)
        shares = ((one.passed(lesson), len(lesson.exercises)) for lesson in handed_in)
        percentages = ("" if passed is None else f"{100 * passed / of:.1f}" for passed, of in shares)
        writer.writerow([name, "", name, "", *percentages])
    return text.getvalue()


def as_page(graded: Sequence[Graded], course: Sequence[Lesson]) -> str:
    """Return an HTML page: how far each student is, and which exercises failed, with their mistakes."""
    everyone = students(graded, course)
    titles = {name: f"{title} ({lesson.title})" for lesson in course for name, title in lesson.exercises.items()}
    cards = "".join(_card(one, course) for one in everyone)
    rows = "".join(_mistake_rows(everyone, titles))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Class</title><style>{SHEET} {STYLE}</style>"
        f'<body class="course-widget"><h2>Where everyone is</h2><div class="course-map">{cards}</div>'
        "<h2>Common mistakes</h2><table><tr><th>Exercise<th>Students<th>What the check observed</tr>"
        f"{rows}</table></body></html>\n"
    )


def _card(student: Student, course: Iterable[Lesson]) -> str:
    """Return the card of one student, with a bar for each lesson that they handed in."""
    bars = "".join(
        f'<p>{escape(lesson.title)}: {passed} of {len(lesson.exercises)} <progress max="{len(lesson.exercises)}"'
        f' value="{passed}" aria-label="{escape(lesson.title)}"></progress></p>'
        for lesson in course
        if (passed := student.passed(lesson)) is not None
    )
    ended = "".join(f"<p>Ended early: {escape(reason)}</p>" for reason in student.ended)
    return f'<div class="course-card"><h4>{escape(student.name)}</h4>{bars}{ended}</div>'


def _mistake_rows(everyone: Iterable[Student], titles: Mapping[str, str]) -> list[str]:
    """Return a row for each exercise and known mistake that a student has, the most frequent first.

    Without a known mistake, students share a row if the check observed the same.
    """
    found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for student in everyone:
        for grade in student.grades.values():
            if grade.status in ("failed", "error"):
                found[grade.exercise, grade.mistake or grade.observed].append((student.name, grade.observed))
    return [
        f"<tr><td>{escape(titles.get(exercise, exercise))}<td>"
        f"{details(str(len(who)), escape(', '.join(name for name, _ in who)))}<td>{escape(who[0][1])}</tr>"
        for (exercise, _), who in sorted(found.items(), key=lambda entry: -len(entry[1]))
    ]
