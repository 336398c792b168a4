"""The language of the widgets, and the learner's record, which they share."""

import functools
import os
from gettext import translation
from pathlib import Path

from .. import quizzes
from ..progress import Progress, lessons

LOCALE = Path(__file__).with_name("static") / "locale"
_ = translation("course", LOCALE, [os.environ.get("COURSE_LANGUAGE", "en")], fallback=True).gettext
"""Return a text in the language of `$COURSE_LANGUAGE`, and in English if it is not translated.

The lessons themselves are English, so the language of the machine does not choose it.
"""


@functools.cache
def progress() -> Progress:
    """Return the one record of this kernel. It is opened at the first call, because `COURSE_HOME` may be set late."""
    return Progress()


def review(quiz: str) -> quizzes.Quiz | None:
    """Return the questions of earlier lessons that come back with this quiz, or None."""
    in_order = [name for lesson in lessons() for name in lesson.quizzes]
    return quizzes.review(quiz, in_order, progress().first_answers)
