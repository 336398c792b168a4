"""A saved lesson shows neither the answer below a prediction nor scaffolding: running or clicking the cell does."""

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


def test_a_question_stands_once_and_its_folded_cell_runs(
    shared_page: Page, jupyterlab: JupyterLab, notebooks: Path
) -> None:
    page = shared_page
    imported = new_code_cell("from course_lib import predict")
    two = 'guess = predict(\n    "start.folded", "What is six times seven?"\n)\npredict("start.next", "Twice that?")'
    asked = new_code_cell(two)
    notebook = new_notebook(cells=[imported, asked, new_code_cell("guess.reveal(6 * 7)\n'the end'")])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    fold(notebook)
    nbformat.write(notebook, notebooks / "scratch.ipynb")

    open_notebook(page, jupyterlab, "scratch.ipynb")
    page.locator(".jp-CodeCell").nth(2).wait_for()
    first, question, below = page.locator(".jp-CodeCell").all()
    first.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")  # the cell below is selected: it needs no click
    fields = page.get_by_label("Your prediction")
    expect(fields).to_have_count(2, timeout=READY_MS)
    expect(page.get_by_text("six times seven").filter(visible=True)).to_have_count(1)

    fields.first.fill("42")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Locked.")).to_be_visible(timeout=READY_MS)
    expect(fields.last).to_be_focused()
    page.keyboard.type("84")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Locked.")).to_have_count(2, timeout=READY_MS)
    expect(below).to_be_focused()  # Shift+Enter goes on without a click
    page.keyboard.press("Shift+Enter")
    expect(below.get_by_text("You predicted 42. Right.")).to_be_visible(timeout=READY_MS)

    question.locator(".jp-InputPlaceholder").click()
    expect(question.locator(".cm-content")).to_contain_text("guess = predict(")
