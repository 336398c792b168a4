"""For every test and every notebook: pytest reads a conftest.py only for what stands below it."""

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    """Keep the progress of tests, and of the kernels that run the notebooks, apart from the learner's own."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["COURSE_HOME"] = home
        return (yield)
