"""For every test and every notebook: pytest reads a conftest.py only for what stands below it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HOMES = pytest.StashKey[Path]()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Keep the progress of tests, and of the kernels that run the notebooks, apart from the learner's own."""
    with tempfile.TemporaryDirectory() as homes:
        session.config.stash[HOMES] = Path(homes)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each file has a learner of its own: what one does, no other finds."""
    os.environ["COURSE_HOME"] = str(item.config.stash[HOMES] / item.path.relative_to(item.config.rootpath))
