"""Where the widgets keep what the learner does."""

from __future__ import annotations

import functools

from ..progress import Progress


@functools.cache
def progress() -> Progress:
    """The one record of this kernel. It is opened when it is first needed, for `COURSE_HOME` may be set late."""
    return Progress()
