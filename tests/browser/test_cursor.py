"""The cursor on memory over time: by keyboard, by mouse, on a phone, and in JupyterLab."""

from pathlib import Path

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page, expect

from course_lib import World
from tests.browser.jupyterlab import READY_MS, JupyterLab, errors, open_notebook, run_all

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELL = """
import torch
from course_lib import World

def program():
    kept = torch.ones(250_000)
    torch.ones(500_000)
    return kept

World(1).run(program).plot_memory()
"""


def program() -> torch.Tensor:
    kept = torch.ones(250_000)
    torch.ones(500_000)
    return kept


@pytest.mark.parametrize("width", [360, 1280])
def test_the_cursor_begins_at_the_peak_and_says_bytes_and_line(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.set_content(f"<body>{World(1).run(program).plot_memory().html}</body>")
    slider, words = page.get_by_label("Moment"), page.locator("output")

    expect(words).to_contain_text("rank 0: 3 MB · ones, test_cursor.py line")
    expect(words).to_contain_text("torch.ones(500_000)")
    slider.press("Home")
    expect(words).to_contain_text("rank 0: 1 MB · ones")
    expect(words).to_contain_text("kept = torch.ones(250_000)")
    box = page.locator("img").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.55 * box["width"] if width > 400 else 300, box["y"] + 80)
    expect(words).to_contain_text("3 MB")
    mark = page.locator("i").bounding_box()
    assert mark is not None and mark["y"] >= box["y"] + 26 * box["width"] / 784 - 1  # below the legend
    visible = words.bounding_box()
    assert visible is not None and visible["x"] >= 0 and visible["x"] + visible["width"] <= width


def test_the_cursor_works_in_jupyterlab(shared_page: Page, jupyterlab: JupyterLab, notebooks: Path) -> None:
    notebook = new_notebook(cells=[new_code_cell(CELL)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, notebooks / "scratch.ipynb")
    open_notebook(shared_page, jupyterlab, "scratch.ipynb")
    run_all(shared_page)
    assert errors(shared_page) == []

    words = shared_page.locator("figure output")
    expect(words).to_contain_text("torch.ones(500_000)", timeout=READY_MS)
    shared_page.get_by_label("Moment").press("Home")
    expect(words).to_contain_text("rank 0: 1 MB")
