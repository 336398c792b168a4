"""The exercises and the quizzes of the course by name. Each is imported when it is first needed.

An exercise's name is its place: `zero1.partition` is `course_lib/lessons/zero1/partition.py`. The quiz of a lesson is
`quiz.py` in its folder. Their order is that of the cells in the notebooks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import lessons
from ..errors import CourseError
from ..syllabus import lessons as syllabus

if TYPE_CHECKING:
    from .checking.check import Exercise

MOVED = {
    "precision.activation_bytes": "activations.activation_bytes",
    "precision.recompute": "activations.recompute",
    "zero3.meta_device": "cluster.meta_device",
    "zero3.optional_module": "cluster.optional_module",
}
"""The names of version 2.0, which stand in the records of learners."""

REMOVED = frozenset({
    "capstone.resume", "costs.fit", "costs.nccl_log", "production.lora", "production.resume", "tensor.copy",
    "tensor.dropout_streams", "tensor.row_linear", "tensor.scatter_sequence",
    "zero3.reduce_gradients",
})  # fmt: skip
"""Exercises of version 2.0 that no lesson has any more. Copies of lessons keep the cells in which they were solved."""


def names() -> tuple[str, ...]:
    """Return the name of every exercise, in the order of the lessons."""
    return tuple(name for lesson in syllabus() for name in lesson.exercises)


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
    if name in REMOVED:
        raise CourseError(
            f"The exercise {name!r} was removed from the course. Your cell stays as it is: delete its first line, "
            "and it defines your function without a check."
        )
    exercise: Exercise | None = getattr(_module(MOVED.get(name, name)), "exercise", None)
    if exercise is None:
        raise _unknown("exercise", name, names())
    return exercise


def get_quiz(name: str) -> Any:
    """Return the quiz of that name. Raises CourseError, with similar names, if there is none."""
    quiz = getattr(_module(f"{name}.quiz"), "QUIZ", None)
    if quiz is None:
        raise _unknown("quiz", name, [name for lesson in syllabus() for name in lesson.quizzes])
    return quiz


def _unknown(kind: str, name: str, there: Sequence[str]) -> CourseError:
    near = difflib.get_close_matches(name, there, n=3, cutoff=0.7)
    advice = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There are: {', '.join(there)}."
    return CourseError(f"There is no {kind} named {name!r}. {advice}")


def _module(name: str) -> Any:
    """Return the module of a lesson's folder that `name` means; None if there is none."""
    if not re.fullmatch(r"\w+\.\w+", name):
        return None
    place = f"{lessons.__name__}.{name}"
    try:
        return import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not place.startswith(error.name):
            raise
        return None
