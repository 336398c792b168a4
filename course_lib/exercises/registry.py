"""The exercises and the quizzes of the course by name. Each is imported when it is first needed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import quizzes
from ..errors import CourseError

if TYPE_CHECKING:
    from ..quizzes import Quiz
    from .form.exercise import Exercise

LESSONS = {
    "start": "machine.start",
    "ranks": "machine.ranks",
    "memory": "machine.memory",
    "data_parallel": "zero.data_parallel",
    "zero1": "zero.zero1",
    "zero2": "zero.zero2",
    "zero3": "zero.zero3",
    "precision": "training.precision",
    "activations": "training.activations",
    "costs": "training.costs",
    "production": "training.production",
    "cluster": "training.cluster",
    "capstone": "training.capstone",
    "tensor": "beyond.tensor",
    "sequence": "beyond.sequence",
    "pipeline": "beyond.pipeline",
    "incidents": "beyond.incidents",
}
"""The packages, by the first part of the names in them, except where an exercise has moved to a different lesson. A
package has a module for each exercise, listed in its `EXERCISES` in the order of the lesson, and the module `quiz`."""

WITHOUT_QUIZ = ("sequence", "incidents")


def names() -> tuple[str, ...]:
    """Return the name of every exercise, in the order of the lessons."""
    return tuple(exercise.name for lesson in LESSONS for exercise in _exercises(lesson))


def get(name: str) -> Exercise:
    """Return the exercise of that name.

    Raises:
        CourseError: there is none; the message lists similar names.
    """
    if not isinstance(name, str):
        raise CourseError(
            f"An exercise is asked for by its name, and not by {name!r}. "
            'Write the name in quotation marks, as in @exercise("ranks.hello").'
        )
    own = name.partition(".")[0]
    for lesson in sorted(LESSONS, key=own.__ne__):  # its own first; some exercises moved on to a different lesson
        for exercise in _exercises(lesson):
            if exercise.name == name:
                return exercise
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.7)
    advice = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There are: {', '.join(names())}."
    raise CourseError(f"There is no exercise named {name!r}. {advice}")


def _exercises(lesson: str) -> Iterator[Exercise]:
    for module in _imported(lesson).EXERCISES:
        yield _imported(lesson, module).exercise


def _quiz(lesson: str) -> Quiz:
    return _imported(lesson, "quiz").QUIZ  # type: ignore[no-any-return]


def _imported(lesson: str, *module: str) -> Any:
    return import_module(".".join(("", LESSONS[lesson], *module)), __package__)


for _lesson in LESSONS:
    if _lesson not in WITHOUT_QUIZ:
        quizzes.register(_lesson, partial(_quiz, _lesson))
