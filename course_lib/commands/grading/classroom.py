"""A class: its grades as Canvas and Moodle import them.

A notebook with the name of a lesson, such as `03-data-parallel.ipynb`, belongs to the student after whom its folder is
named, or the folder around `work` or `sharded`. Any other file is named after its student: `ann.ipynb`. An exercise has
passed if one of the student's attempts has, in any of the student's notebooks.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from unicodedata import normalize

from ...syllabus import Lesson
from .report import Grade, Graded, as_text, best

COPIES = ("work", "sharded")
"""The names of the folder that `course lab` makes."""


def as_gradebook(graded: Sequence[Graded], course: Sequence[Lesson]) -> str:
    """Return CSV with a row for each student and a column for each lesson: the percentage of exercises that passed.

    The first four columns are those that Canvas looks for. Moodle asks which column is which. A lesson without a
    notebook has no grade.
    """
    attempts: dict[str, list[Grade]] = defaultdict(list)
    for one, name in zip(graded, _names(graded, course), strict=True):
        attempts[name] += [grade for grade in one.exercises if grade.status != "missing"]
    everyone = {name: best(grades) for name, grades in sorted(attempts.items())}
    handed_in = [lesson for lesson in course if any(_percentage(lesson, grades) for grades in everyone.values())]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["Student", "ID", "SIS Login ID", "Section", *(lesson.path.stem for lesson in handed_in)])
    for name, grades in everyone.items():
        student = as_text(name)
        writer.writerow([student, "", student, "", *(_percentage(lesson, grades) for lesson in handed_in)])
    return text.getvalue()


def _percentage(lesson: Lesson, grades: Mapping[str, Grade]) -> str:
    """Return how many of the lesson's exercises passed; empty if no notebook has one of them."""
    passed = [grades[name].status == "passed" for name in lesson.exercises if name in grades]
    return f"{100 * sum(passed) / len(lesson.exercises):.1f}" if passed else ""


def _names(graded: Sequence[Graded], course: Iterable[Lesson]) -> list[str]:
    """Return the name of each notebook's student; a path, if the same exercise is in two places of one name."""
    titles = "|".join(re.escape(lesson.path.stem[2:]) for lesson in course)
    lesson_file = re.compile(rf"(Copy of )*\d\d({titles})")  # a release may renumber the lessons
    places: list[Path] = []
    found: dict[tuple[str, str], set[Path]] = defaultdict(set)
    for one in graded:
        path = Path(normalize("NFC", one.notebook)).absolute()
        folder = next(parent for parent in path.parents if parent.name not in COPIES)
        place = folder if lesson_file.match(path.name) else folder / path.stem
        places.append(place)
        for grade in one.exercises:
            if grade.status != "missing":
                found[place.name, grade.exercise].add(place)
    shared = {name for (name, _), where in found.items() if len(where) > 1}
    return [str(place) if place.name in shared else place.name for place in places]
