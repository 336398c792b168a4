"""How a notebook shows the errors that are meant for readers."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_notebook_shows_the_sentence_and_the_learners_line() -> None:
    source = "from course_lib import exercise\n\ndef ask(name):\n    return exercise(name)\n\nask('ranks.helo')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, kernel_name="python3", timeout=60, allow_errors=True).execute(cwd=str(ROOT))
    (error,) = notebook.cells[0].outputs
    sentence, line = error.traceback

    assert sentence.startswith("CourseError: There is no exercise named 'ranks.helo'.")
    assert max(map(len, sentence.split("\n"))) <= 88
    assert line == "\nCalled in cell In[1], line 4:  return exercise(name)"
