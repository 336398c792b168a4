"""Executes lessons as a learner who has done nothing yet, and saves what came out: `make notebooks`, before a commit.

python -m tests.notebooks.save [NOTEBOOK...]
"""

import os
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from course_lib.lessons import NOTEBOOKS

WIDGET = "application/vnd.jupyter.widget-view+json"


def save(path: Path) -> None:
    """Execute the notebook at `path`, and write it as it is shipped: without widgets, which live only in a kernel."""
    notebook = nbformat.read(path, as_version=4)
    metadata = deepcopy(notebook.metadata)
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"COURSE_HOME": home, "COURSE_WORLD": "simulated"}
        client = NotebookClient(
            notebook, kernel_name="python3", timeout=600, record_timing=False, coalesce_streams=True
        )
        client.execute(env=environment)
    notebook.metadata = metadata  # without widgets, and with no more of the kernel than its name
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb")):
        save(path)
        print(path)
