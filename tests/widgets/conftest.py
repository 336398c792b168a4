"""A record of its own for each test, and notebooks that are run in a kernel."""

import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from course_lib.progress import Progress

ROOT = Path(__file__).parents[2]


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    return Progress(tmp_path / "progress.sqlite3")


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., NotebookNode]:
    """Runs cells in a kernel with a record of its own, and returns their notebook."""

    def execute(*cells: str) -> NotebookNode:
        monkeypatch.setenv("COURSE_HOME", str(tmp_path / str(time.monotonic_ns())))
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        return NotebookClient(notebook, kernel_name="python3", timeout=60).execute(cwd=str(ROOT))

    return execute
