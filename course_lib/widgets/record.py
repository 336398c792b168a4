"""The learner's record, which the widgets share."""

import functools

from ..progress import Progress


@functools.cache
def progress() -> Progress:
    """Return the one record of this kernel. It is opened at the first call, because `COURSE_HOME` may be set late."""
    return Progress()
