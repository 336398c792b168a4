import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page

from tests.browser.jupyterlab import JupyterLab, errors, open_lab, open_notebook, outputs, run_all

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_jupyterlab_lists_the_lessons(shared_page: Page, jupyterlab: JupyterLab) -> None:
    open_lab(shared_page, jupyterlab)

    shared_page.get_by_role("listitem", name="00-start-here.ipynb").wait_for(timeout=10_000)


def test_a_notebook_runs_in_our_python_and_its_errors_are_collected(
    shared_page: Page, jupyterlab: JupyterLab, notebooks: Path
) -> None:
    cells = ["import sys; print(sys.executable)", "1 / 0", "print('never reached')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, notebooks / "division.ipynb")

    open_notebook(shared_page, jupyterlab, "division.ipynb")
    run_all(shared_page)

    printed, raised = outputs(shared_page)
    assert printed["text"] == f"{sys.executable}\n"
    assert raised["output_type"] == "error"
    assert errors(shared_page) == ["ZeroDivisionError: division by zero"]
