"""Where the widgets keep what the learner does."""

from __future__ import annotations

import functools

from .. import exercises, quizzes
from ..progress import Progress


@functools.cache
def progress() -> Progress:
    """The one record of this kernel. It is opened when it is first needed, for `COURSE_HOME` may be set late."""
    return Progress()


def review(quiz: str) -> quizzes.Quiz | None:
    """The questions of earlier lessons that come back with this quiz; None where there are none."""
    lessons = list(dict.fromkeys(name.partition(".")[0] for name in exercises.names()))
    return quizzes.review(quiz, lessons, progress().first_answers)
