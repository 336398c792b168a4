"""The quizzes of the course by name. Each lesson's module adds its own when it is imported."""

import difflib

from ..errors import CourseError
from .quiz import Quiz


class Registry:
    """Quizzes by name, in the order in which they were registered."""

    def __init__(self) -> None:
        self._quizzes: dict[str, Quiz] = {}

    def register(self, quiz: Quiz) -> Quiz:
        """Add a quiz, and return it. Raises ValueError if its name is taken."""
        if quiz.name in self._quizzes:
            raise ValueError(f"There is a quiz named {quiz.name!r} already. Give this one a name of its own.")
        self._quizzes[quiz.name] = quiz
        return quiz

    def get(self, name: str) -> Quiz:
        """Return the quiz of that name. Raises CourseError, with the names that exist, if there is none."""
        if name in self._quizzes:
            return self._quizzes[name]
        near = difflib.get_close_matches(name, self._quizzes, n=1)
        raise CourseError(
            f"There is no quiz named {name!r}. The course has: {', '.join(self._quizzes) or 'none yet'}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )

    def names(self) -> tuple[str, ...]:
        return tuple(self._quizzes)


_course = Registry()
register, get, names = _course.register, _course.get, _course.names
