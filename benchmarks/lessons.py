"""How long the lessons take, from top to bottom in a fresh kernel, as they are shipped."""

import os
import tempfile
from collections.abc import Iterator

import nbformat
from nbclient import NotebookClient

from course_lib.syllabus import lessons

from .measure import Row, seconds

LIMIT = 60
"""Seconds that a lesson may take on 2 cores."""


def rows() -> Iterator[Row]:
    """The rows of this benchmark."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["COURSE_HOME"] = home  # a learner who has done nothing yet
        for lesson in lessons():
            notebook = nbformat.read(lesson.path, as_version=4)
            took = seconds(NotebookClient(notebook, kernel_name="python3", timeout=600).execute)
            yield Row(what=lesson.path.stem, ours=took, most=LIMIT)
