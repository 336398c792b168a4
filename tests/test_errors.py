"""How a notebook shows the errors that are meant for readers."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_notebook_shows_the_sentence_and_the_learners_line() -> None:
    sources = [
        "from course_lib import exercise\n\ndef ask(name):\n    return exercise(name)\n\nask('ranks.helo')",
        "from course_lib import plan\nplan(params=7e9, stage=4)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, kernel_name="python3", timeout=60, allow_errors=True).execute(cwd=str(ROOT))
    unknown, planned = (cell.outputs[0].traceback for cell in notebook.cells)

    assert unknown[0].startswith("CourseError: There is no exercise named 'ranks.helo'.")
    assert max(map(len, unknown[0].split("\n"))) <= 88
    assert unknown[1] == "\nCalled in cell In[1], line 4:  return exercise(name)"
    assert planned[0].startswith("PlanError: stage=4: it has to be a whole number, from 0 to 3.")
    assert planned[1] == "\nCalled in cell In[2], line 2:  plan(params=7e9, stage=4)"
