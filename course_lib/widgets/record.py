"""The learner's record, which the widgets share."""

import functools

from .. import quizzes
from ..progress import Progress
from ..syllabus import lessons


@functools.cache
def progress() -> Progress:
    """Return the one record of this kernel. It is opened at the first call, because `COURSE_HOME` may be set late."""
    return Progress()


def review(quiz: str) -> quizzes.Quiz | None:
    """Return the questions of earlier lessons that come back with this quiz, or None."""
    in_order = [name for lesson in lessons() for name in lesson.quizzes]
    return quizzes.review(quiz, in_order, progress().first_answers)
