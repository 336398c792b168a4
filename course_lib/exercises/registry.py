"""The exercises of the course by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ..errors import CourseError
from .beyond import incidents, pipeline, sequence, tensor
from .form.exercise import Exercise
from .machine import memory, ranks, start
from .training import activations, capstone, cluster, costs, precision, production
from .zero import data_parallel, zero1, zero2, zero3

LESSONS = (
    start.EXERCISES,
    ranks.EXERCISES,
    memory.EXERCISES,
    data_parallel.EXERCISES,
    zero1.EXERCISES,
    zero2.EXERCISES,
    zero3.EXERCISES,
    precision.EXERCISES,
    activations.EXERCISES,
    costs.EXERCISES,
    production.EXERCISES,
    cluster.EXERCISES,
    capstone.EXERCISES,
    tensor.EXERCISES,
    sequence.EXERCISES,
    pipeline.EXERCISES,
    incidents.EXERCISES,
)
"""The exercises of each lesson, in the order of the lessons."""


class Registry:
    """Exercises by name, in the order of the lessons.

    Raises:
        ValueError: two exercises have the same name.
    """

    def __init__(self, exercises: Iterable[Exercise]) -> None:
        self._exercises: dict[str, Exercise] = {}
        for exercise in exercises:
            if exercise.name in self._exercises:
                raise ValueError(f"There are two exercises named {exercise.name!r}. Give each a name of its own.")
            self._exercises[exercise.name] = exercise

    def names(self) -> tuple[str, ...]:
        """Return the name of every exercise."""
        return tuple(self._exercises)

    def get(self, name: str) -> Exercise:
        """Return the exercise of that name.

        Raises:
            CourseError: there is none; the message lists similar names.
        """
        if not isinstance(name, str):
            raise CourseError(
                f"An exercise is asked for by its name, and not by {name!r}. "
                'Write the name in quotation marks, as in @exercise("ranks.hello").'
            )
        if name in self._exercises:
            return self._exercises[name]
        near = difflib.get_close_matches(name, self._exercises, n=3, cutoff=0.7)
        advice = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There are: {', '.join(self.names())}."
        raise CourseError(f"There is no exercise named {name!r}. {advice}")


_course = Registry(exercise for lesson in LESSONS for exercise in lesson)
names, get = _course.names, _course.get
