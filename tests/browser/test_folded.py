"""A saved lesson does not show the answer below a prediction; running the cell shows it."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import Page, expect

from tests.browser.jupyterlab import READY_MS, JupyterLab, open_notebook, run_all
from tests.notebooks.save import fold

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_an_answer_is_folded_until_its_cell_is_run(shared_page: Page, jupyterlab: JupyterLab, notebooks: Path) -> None:
    page = shared_page
    saved = [new_output("stream", name="stdout", text="42\n")]
    question, code = "**Predict:** what is 6 times 7?", "print(6 * 7)"
    notebook = new_notebook(cells=[new_markdown_cell(question), new_code_cell(code, outputs=saved)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    fold(notebook)
    nbformat.write(notebook, notebooks / "folded.ipynb")

    open_notebook(page, jupyterlab, "folded.ipynb")
    expect(page.locator(".jp-OutputPlaceholder")).to_be_visible(timeout=READY_MS)
    expect(page.get_by_text("42", exact=True)).to_be_hidden()

    run_all(page)
    expect(page.get_by_text("42", exact=True)).to_be_visible(timeout=READY_MS)
