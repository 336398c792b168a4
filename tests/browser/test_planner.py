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


def test_the_keyboard_is_enough_and_keeps_its_place(planner: Locator, page: Page) -> None:
    expect(planner.get_by_text("✓ Fits")).to_be_visible(timeout=READY_MS)
    stage = planner.get_by_label("3 + parameters")
    stage.focus()
    page.keyboard.press("ArrowRight")  # from the last to the first
    expect(planner.get_by_text("✗ Does not fit")).to_be_visible(timeout=READY_MS)
    expect(planner.get_by_text("was 34.3 GB")).to_be_visible()
    expect(planner.get_by_label("0 nothing")).to_be_focused()

    gpus = planner.get_by_label("GPUs", exact=True)
    gpus.focus()
    page.keyboard.press("ArrowUp")
    expect(planner.get_by_text("9 ranks on 8x H100 80GB, NVLink")).to_be_visible(timeout=READY_MS)
    expect(gpus).to_be_focused()


def test_a_page_that_is_loaded_again_shows_what_was_chosen(planner: Locator, page: Page) -> None:
    planner.get_by_text("1 optimizer").click()
    expect(planner.locator("p", has_text="Stage 1 on 8 ranks")).to_be_visible(timeout=READY_MS)
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.reload()

    expect(page.locator(".course-widget").first.get_by_label("1 optimizer")).to_be_checked(timeout=READY_MS)


def test_keys_typed_in_a_list_are_no_commands_to_the_notebook(planner: Locator, page: Page) -> None:
    """Letters insert cells, cut them, and make them Markdown where nothing keeps them; arrows go to other cells."""
    optimizer = planner.locator("[name=optimizer]")
    expect(optimizer).to_be_visible(timeout=READY_MS)
    before = cells(page)
    for key in ("a", "b", "m", "x", "Shift+M", "d", "d"):
        optimizer.press(key)
    assert cells(page) == before

    optimizer.select_option("adamw")
    optimizer.press("ArrowUp")
    assert optimizer.input_value() == "adam"
    expect(optimizer).to_be_focused()
    optimizer.press("Shift+Enter")  # runs the cell, as it does everywhere
    wait_for(page, f"{NOTEBOOK}.content.activeCellIndex === 1")


def cells(page: Page) -> list[str]:
    """The type of every cell."""
    return list(page.evaluate(f"{NOTEBOOK}.content.model.sharedModel.toJSON().cells.map(cell => cell.cell_type)"))


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_it_can_be_read_in_both_themes(planner: Locator, page: Page, theme: str) -> None:
    choose_theme(page, "Dark" if theme == "Dark" else "Light")
    planner.get_by_text("The plan as text").click()
    expect(planner.get_by_text("Held by rank 0; no rank holds more:")).to_be_visible(timeout=READY_MS)
    for text in ("✓ Fits", "The plan as text", "Tokens of a sequence", "held at most", "the step"):
        assert contrast(planner.get_by_text(text).first) >= 4.5
    assert axe_finds(page.main_frame, [".course-widget"]) == []
