"""For every test and every notebook: pytest reads a conftest.py only for what stands below it."""

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

HOMES = pytest.StashKey[Path]()

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in `course lab`


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Keep the progress of tests, and of the kernels that run the notebooks, apart from the learner's own.

    And let them be interrupted, as some interrupt themselves: what a shell runs in the background is born deaf to it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as homes:
        session.config.stash[HOMES] = Path(homes)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each file has a learner of its own: what one does, no other finds."""
    os.environ["COURSE_HOME"] = str(item.config.stash[HOMES] / item.path.relative_to(item.config.rootpath))


class ByPart(LoadScopeScheduling):
    """Give a worker a file at a time; of the two that are half of the suite, one exercise's or one notebook's tests."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if not file.endswith(("test_every_exercise.py", "test_notebooks.py")):
            return file
        part = re.search(r"\[([\w.]+)", test)  # test_a_mistake_is_rejected_under_its_own_id[ranks.hello-wrong-rank]
        return f"{file}::{part[1] if part else test}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByPart:
    return ByPart(config, log)
