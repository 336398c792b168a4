"""The quizzes of the course by name. `course_lib.exercises` registers them, because each is a part of a lesson."""

import difflib
from collections.abc import Callable, Mapping
from importlib import import_module

from ..errors import CourseError
from .quiz import Quiz

_course: dict[str, Callable[[], Quiz]] = {}


def register(name: str, load: Callable[[], Quiz]) -> None:
    """Add a quiz, which `load` returns when it is first needed."""
    _course[name] = load


def get(name: str) -> Quiz:
    """Return the quiz of that name. Raises CourseError, with the names that exist, if there is none."""
    course = _registered()
    if name in course:
        return course[name]()
    near = difflib.get_close_matches(name, course, n=1)
    raise CourseError(
        f"There is no quiz named {name!r}. The course has: {', '.join(course)}."
        + (f" Did you mean {near[0]!r}?" if near else "")
    )


def names() -> tuple[str, ...]:
    """Return the name of every quiz, in the order of the lessons."""
    return tuple(_registered())


def _registered() -> Mapping[str, Callable[[], Quiz]]:
    import_module("course_lib.exercises")  # imported here, because it imports this package
    return _course
