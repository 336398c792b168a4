import json
import sys
import urllib.request
from pathlib import Path

import nbformat
import psutil
import pytest
from playwright.sync_api import Page

from tests.browser.jupyterlab import JupyterLab, errors, open_lab, open_notebook, outputs, run_all

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def answer(server: JupyterLab, path: str) -> tuple[str, str]:
    """The address that `path` leads to, and the text found there."""
    request = urllib.request.Request(server.url + path, headers={"Authorization": f"token {server.token}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.url, response.read().decode()


def test_lab_opens_the_first_lesson_without_a_question_and_on_loopback_only(server: JupyterLab) -> None:
    address, _ = answer(server, "/")
    assert address == f"{server.url}/lab/tree/00-start-here.ipynb"

    _, files = answer(server, "/api/contents")
    assert "00-start-here.ipynb" in [file["name"] for file in json.loads(files)["content"]]

    _, settings = answer(server, "/lab/api/settings/@jupyterlab/apputils-extension:notification")
    assert json.loads(settings)["schema"]["properties"]["fetchNews"]["default"] == "false"

    connections = psutil.Process(server.process.pid).net_connections("inet")
    listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening and listening <= {"127.0.0.1", "::1"}


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


def test_the_columns_of_a_listing_stay_side_by_side_in_a_narrow_window(
    shared_page: Page, jupyterlab: JupyterLab, notebooks: Path
) -> None:
    page, screen = shared_page, shared_page.viewport_size
    lesson = nbformat.read(notebooks / "04-zero-1.ipynb", as_version=4)
    (listing,) = (cell.source for cell in lesson.cells if "\n        start its all-reduce" in cell.source)
    asked = 'from course_lib import predict\npredict("start.listing", "What is six times seven?")'
    cells = [nbformat.v4.new_code_cell(asked), nbformat.v4.new_markdown_cell(listing)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, notebooks / "scratch.ipynb")
    page.set_viewport_size({"width": 800, "height": 900})

    open_notebook(page, jupyterlab, "scratch.ipynb")
    run_all(page)
    code = page.locator(".jp-RenderedMarkdown pre code")
    code.wait_for()
    height = "code => code.clientHeight / parseFloat(getComputedStyle(code).lineHeight)"
    assert code.evaluate("code => code.scrollWidth > code.clientWidth")
    assert code.evaluate(height) < len(code.inner_text().splitlines()) + 2

    page.set_viewport_size(screen or {"width": 1280, "height": 900})
