"""The quizzes of the course by name."""

from ..syllabus import lessons
from .quiz import Quiz


def get(name: str) -> Quiz:
    """Return the quiz of that name. Raises CourseError, with similar names, if there is none."""
    from ..exercises.registry import get_quiz  # imported here: it needs torch, and a record of answers does not

    quiz: Quiz = get_quiz(name)
    return quiz


def names() -> tuple[str, ...]:
    """Return the name of every quiz, in the order of the lessons."""
    return tuple(name for lesson in lessons() for name in lesson.quizzes)
