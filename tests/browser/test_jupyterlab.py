import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page

from tests.browser.jupyterlab import (
    JupyterLab,
    choose_theme,
    errors,
    open_lab,
    open_notebook,
    outputs,
    run_all,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_jupyterlab_lists_the_lessons(page: Page, jupyterlab: JupyterLab) -> None:
    open_lab(page, jupyterlab)

    page.get_by_role("listitem", name="00-start-here.ipynb").wait_for(timeout=10_000)


def test_a_notebook_runs_in_our_python_and_its_errors_are_collected(
    page: Page, jupyterlab: JupyterLab, notebooks: Path
) -> None:
    cells = ["import sys; print(sys.executable)", "1 / 0", "print('never reached')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, notebooks / "division.ipynb")

    open_notebook(page, jupyterlab, "division.ipynb")
    run_all(page)

    printed, raised = outputs(page)
    assert printed["text"] == f"{sys.executable}\n"
    assert raised["output_type"] == "error"
    assert errors(page) == ["ZeroDivisionError: division by zero"]


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_both_themes_can_be_chosen(page: Page, jupyterlab: JupyterLab, theme: str) -> None:
    open_lab(page, jupyterlab)
    choose_theme(page, theme)

    is_light = page.evaluate("document.body.dataset.jpThemeLight")
    assert is_light == ("true" if theme == "Light" else "false")
