"""Executes lessons as a learner who has done nothing yet, and saves what came out: `make notebooks`, before a commit.

python -m tests.notebooks.save [NOTEBOOK...]
"""

import ast
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import dropwhile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_output

from course_lib.syllabus import NOTEBOOKS

WIDGET = "application/vnd.jupyter.widget-view+json"

SCAFFOLDING = re.compile(
    r"(\w+ = )?(predict|quiz|choose_world|course_map|diagnosis|(plots\.)?plot_\w+)\(|[\w.]+(\[[^]]*\])?\.reveal\("
)
"""The beginning of a statement that only asks, scores an answer or draws. `run.plot_memory()` is the learner's tool."""


def save(path: Path) -> None:
    """Execute the notebook at `path`, and write it as it is shipped.

    Widgets are left out: they live only in a kernel. Scaffolding and the answers to predictions are folded.
    """
    notebook = nbformat.read(path, as_version=4)
    metadata = deepcopy(notebook.metadata)
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"COURSE_HOME": home, "COURSE_WORLD": "simulated", "OMP_WAIT_POLICY": "passive"}
        client = NotebookClient(
            notebook, kernel_name="python3", timeout=600, record_timing=False, coalesce_streams=True
        )
        client.execute(env=environment)
    notebook.metadata = metadata  # without widgets, and with no more of the kernel than its name
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
    fold(notebook)
    nbformat.write(notebook, path)


def fold(notebook: NotebookNode) -> None:
    """Fold what the learner does not have to read, and the outputs that answer predictions.

    JupyterLab unfolds an output when its cell is run, and a source when it is clicked.
    """
    for cell in notebook.cells:
        cell.metadata.pop("jupyter", None)
        if is_scaffolding(cell):
            cell.metadata["jupyter"] = {"source_hidden": True}
    for cell in answers(notebook.cells):
        cell.metadata.setdefault("jupyter", {})["outputs_hidden"] = True
        nothing = new_output("display_data")  # a fold shows the first line of the first output
        cell.outputs[:0] = [nothing] if cell.outputs[0] != nothing else []


def is_scaffolding(cell: NotebookNode) -> bool:
    """Whether every statement of the cell only asks, scores an answer or draws; before them it may name literals."""
    if cell.cell_type != "code" or cell.source.startswith(("%", "!")):
        return False
    statements = dropwhile(_names_a_literal, ast.parse(cell.source).body)
    sources = [ast.get_source_segment(cell.source, one) or "" for one in statements]
    return bool(sources) and all(SCAFFOLDING.match(one) and ".run(" not in one for one in sources)


def _names_a_literal(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign):
        return False
    return not any(isinstance(node, ast.Call | ast.Name) for node in ast.walk(statement.value))


def asks(cell: NotebookNode) -> bool:
    """Whether the cell asks for a prediction, in its text or with a field."""
    return ("**Predict" if cell.cell_type == "markdown" else "predict(") in cell.source


def answers(cells: Iterable[NotebookNode]) -> Iterator[NotebookNode]:
    """Find the code cells whose outputs answer a prediction.

    These are all cells from the prediction to the first text after an output. If the prediction has a field, they reach
    to its `reveal` at least. Fields and exercises never count.
    """
    asked = answered = field = False
    for cell in cells:
        if asks(cell):
            asked, answered, field = True, False, field or cell.cell_type == "code"
        elif cell.cell_type == "markdown":
            asked = field or (asked and not answered)
        elif asked and cell.outputs and not cell.source.startswith("@exercise"):
            answered, field = True, field and ".reveal(" not in cell.source
            yield cell


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb")):
        save(path)
        print(path)
