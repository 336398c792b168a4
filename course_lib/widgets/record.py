"""The learner's record, as the widgets use it."""

from __future__ import annotations

import functools

from .. import exercises, quizzes
from ..progress import Progress


@functools.cache
def progress() -> Progress:
    """Return the one record of this kernel. It is opened at the first call, because `COURSE_HOME` may be set late."""
    return Progress()


def review(quiz: str) -> quizzes.Quiz | None:
    """Return the questions of earlier lessons that come back with this quiz, or None."""
    lessons = list(dict.fromkeys(name.partition(".")[0] for name in exercises.names()))
    return quizzes.review(quiz, lessons, progress().first_answers)
