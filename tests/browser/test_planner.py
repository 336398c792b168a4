"""The planner in a browser: used by keyboard alone, in both themes."""

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.jupyterlab import NOTEBOOK, READY_MS, JupyterLab, choose_theme, open_notebook, run_all, wait_for
from tests.browser.test_learning import axe_finds, contrast

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(shared_page: Page, server: JupyterLab, notebooks: Path) -> Page:
    """A notebook that shows the planner, open."""
    notebook = nbformat.v4.new_notebook()
    sources = ("from course_lib import show_planner\n\nshow_planner()", "")
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, notebooks / "planner.ipynb")
    open_notebook(shared_page, server, "planner.ipynb")
    return shared_page


@pytest.fixture
def planner(page: Page) -> Locator:
    """A new planner, shown by a notebook's first cell, which is the active one; there is another below."""
    page.evaluate(f"() => {{ const lab = {NOTEBOOK}; lab.content.activeCellIndex = 0; }}")
    run_all(page)
    return page.locator(".course-widget").first


def test_the_keyboard_is_enough(planner: Locator, page: Page) -> None:
    expect(planner.get_by_text("Fits:")).to_be_visible(timeout=READY_MS)
    planner.get_by_label("ZeRO stage").focus()
    for key in ("Enter", "Home", "Enter"):
        page.keyboard.press(key)
    expect(planner.get_by_text("Does not fit:")).to_be_visible(timeout=READY_MS)

    planner.get_by_label("GPUs").focus()
    page.keyboard.press("ArrowUp")
    expect(planner.get_by_text("9 ranks on 8x H100 80GB, NVLink")).to_be_visible(timeout=READY_MS)


def test_keys_typed_in_a_list_are_no_commands_to_the_notebook(planner: Locator, page: Page) -> None:
    """Letters insert cells, cut them, and make them Markdown where nothing keeps them; arrows go to other cells."""
    stage = planner.get_by_label("ZeRO stage")
    expect(stage).to_be_visible(timeout=READY_MS)
    before = cells(page)
    for key in ("a", "b", "m", "x", "Shift+M", "d", "d"):
        stage.press(key)
    assert cells(page) == before

    stage.press("ArrowUp")
    assert stage.input_value() == "2: gradients sharded, too"
    expect(stage).to_be_focused()
    stage.press("Shift+Enter")  # runs the cell, as it does everywhere
    wait_for(page, f"{NOTEBOOK}.content.activeCellIndex === 1")


def cells(page: Page) -> list[str]:
    """The type of every cell."""
    return list(page.evaluate(f"{NOTEBOOK}.content.model.sharedModel.toJSON().cells.map(cell => cell.cell_type)"))


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_it_can_be_read_in_both_themes(planner: Locator, page: Page, theme: str) -> None:
    choose_theme(page, "Dark" if theme == "Dark" else "Light")
    expect(planner.get_by_role("img", name="a rank holds at most")).to_be_visible(timeout=READY_MS)
    planner.get_by_text("The figure as text").click()
    expect(planner.get_by_text("Held by rank 0; no rank holds more:")).to_be_visible()
    for text in ("Fits:", "The figure as text", "Tab goes from field to field."):
        assert contrast(planner.get_by_text(text).first) >= 4.5
    assert axe_finds(page.main_frame, [".course-widget"]) == []
