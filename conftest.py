"""For every test and every notebook: pytest reads a conftest.py only for what stands below it."""

import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.notebooks.solved import with_solutions

HOMES = pytest.StashKey[Path]()
BY_EXERCISE = ("tests/exercises/test_answers.py", "tests/exercises/test_every_exercise.py")
"""Their tests of one exercise go to one worker, where runs of the reference and of known mistakes are kept."""

CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")

LONGEST = ("notebooks/", "tests/browser/", "tests/commands/", "tests/notebooks/", "tests/world/", "tests/zero/")

gc.disable()  # until tests run: while each worker imports them, nothing is garbage, and the search takes four seconds

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in `course lab`
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # some hundred processes import the course: compile it once
sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Keep the progress of tests, and of the kernels that run the notebooks, apart from the learner's own.

    Restore SIGINT, which a shell disables for what it runs in the background: some tests interrupt themselves.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()
    gc.set_threshold(700, 10, 100)  # full collections are rare: each looks at all tests of the suite, for 0.5 s
    with tempfile.TemporaryDirectory() as homes:
        session.config.stash[HOMES] = Path(homes)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give each file its own COURSE_HOME, so that tests do not share progress.

    Keep a worker, and the kernels that it starts, on one core: ranks that are threads take turns with Python's lock,
    which costs up to a fifth more if they are on different cores. Ranks that are processes have all cores.
    """
    os.environ["COURSE_HOME"] = str(item.config.stash[HOMES] / item.path.relative_to(item.config.rootpath))
    if sys.platform == "linux" and WORKER:
        processes = item.nodeid.startswith("tests/world/") and "[simulated" not in item.nodeid
        all_cores = processes or item.get_closest_marker("gpu")
        os.sched_setaffinity(0, CORES if all_cores else {CORES[int(WORKER) % len(CORES)]})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--as-shipped", action="store_true", help="run lessons without the solutions of exercises")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, and end with many short parts, so that workers end together."""
    if not config.option.as_shipped:
        items[:] = with_solutions(items)
    items.sort(key=lambda item: (not item.nodeid.startswith(LONGEST), item.nodeid.startswith(BY_EXERCISE)))


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Iterator[None]:
    """Two more workers than there are cores: tests wait for kernels, for ranks and for the browser."""
    return (yield) + 2


class ByPart(LoadScopeScheduling):
    """Give a worker a file at a time, or the tests of one exercise, or what shares something that takes long to start.

    That is a browser with JupyterLab, and one backend in the contract's tests: a cluster, and processes that import
    what programs use.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file in BY_EXERCISE:
            part = re.search(r"\[([\w.]+)", test)  # test_a_mistake_is_rejected_under_its_own_id[ranks.hello-wrong-rank]
            return part[1] if part else nodeid
        if file.endswith("test_elsewhere.py"):
            return nodeid
        if file.startswith("tests/browser/"):
            return "browser"
        if file.endswith("test_cluster.py"):
            return "contract on cluster"
        backend = re.search(r"\[(simulated|processes|cluster)\b", test)
        return f"contract on {backend[1]}" if "/contract/" in file and backend else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByPart:
    return ByPart(config, log)
