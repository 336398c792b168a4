"""A lesson without its kernel: saved and opened on another day, or after a restart of the kernel."""

import shutil
from pathlib import Path

import nbformat
import pytest
import torch.distributed as dist
from playwright.sync_api import Locator, Page, expect

from course_lib import World
from course_lib.plots import move_zero, plot_shards
from tests.browser.jupyterlab import NOTEBOOK, READY_MS, JupyterLab, open_notebook, run_all, wait_for, wait_until_idle

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAME = "day-two.ipynb"
CELLS = [
    "from course_lib import choose_world, exercise, predict, quiz, show_planner",
    "choose_world()",
    'guess = predict("browser.sum", "What is `6 * 7`?", tolerance=0)',
    '@exercise("ranks.hello")\ndef hello() -> str:\n    return "hello"',
    'quiz("start")',
    "show_planner()",
]
WIDGETS = range(1, 6)
LOST = "Error displaying widget: model not found"
GO_ON = "To go on, run the cells above this one (menu Run, Run All Above Selected Cell), then this cell."
TEXTS_BEFORE = """widget => [widget, ...widget.querySelectorAll('*')]
    .map(part => getComputedStyle(part, '::before').content).filter(text => text !== 'none' && text !== 'normal')"""


@pytest.fixture(scope="module")
def lesson(shared_page: Page, server: JupyterLab, notebooks: Path) -> Page:
    """A short lesson with every widget, open, and every cell run. A test leaves it so."""
    shutil.rmtree(server.progress, ignore_errors=True)
    write(notebooks / NAME, [nbformat.v4.new_code_cell(cell) for cell in CELLS])
    open_notebook(shared_page, server, NAME)
    run_all(shared_page)
    for number in WIDGETS:
        expect(cell(shared_page, number).locator(".course-widget")).to_be_visible(timeout=READY_MS)
        expect(cell(shared_page, number).locator(".course-saved").first).to_be_hidden()
    return shared_page


def write(path: Path, cells: list[nbformat.NotebookNode]) -> None:
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, path)


def cell(page: Page, number: int) -> Locator:
    return page.locator(".jp-Notebook .jp-Cell").nth(number)


def open_on_day_two(page: Page, server: JupyterLab) -> None:
    """Save, end the kernel, and open the notebook with a new one; until the old widgets are given up."""
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    wait_for(page, f"!{NOTEBOOK}.context.model.dirty")
    page.evaluate(f"async () => await {NOTEBOOK}.sessionContext.shutdown()")
    page.goto("about:blank")  # the day ends
    open_notebook(page, server, NAME)


def test_on_day_two_each_widget_is_one_card_with_title_and_state(lesson: Page, server: JupyterLab) -> None:
    open_on_day_two(lesson, server)
    expect(lesson.get_by_text(LOST)).to_have_count(len(WIDGETS), timeout=READY_MS)

    for number in WIDGETS:
        expect(cell(lesson, number).get_by_text(LOST)).to_be_hidden()
    for number in WIDGETS:
        expect(cell(lesson, number).get_by_text(GO_ON)).to_be_visible()
    expect(cell(lesson, 2).get_by_text("Predict: What is 6 * 7? run this cell to see yours")).to_be_visible()
    expect(cell(lesson, 3).get_by_text("Exercise: Say hello by rank ✗ Not right yet.")).to_be_visible()
    cell(lesson, 3).get_by_text("As text").click()
    expect(cell(lesson, 3).get_by_text("ranks.hello: failed")).to_be_visible()

    run_all(lesson)
    for number in WIDGETS:
        expect(cell(lesson, number).locator(".course-widget")).to_be_visible(timeout=READY_MS)
        expect(cell(lesson, number).get_by_text(GO_ON)).to_be_hidden()


def test_after_a_restart_a_card_keeps_what_it_says_and_has_nothing_to_click(lesson: Page) -> None:
    lesson.evaluate(f"async () => await {NOTEBOOK}.sessionContext.session.kernel.restart()")
    wait_until_idle(lesson)

    for number in WIDGETS:
        widget = cell(lesson, number).locator(".course-widget")
        assert widget.evaluate(TEXTS_BEFORE) == [f'"The kernel of this cell has ended. {GO_ON}"']
        assert widget.get_by_role("button").count() == 0
        assert "grayscale" in widget.evaluate("widget => getComputedStyle(widget).filter")
    expect(cell(lesson, 3).locator(".course-widget").get_by_text("Not right yet.")).to_be_visible()

    run_all(lesson)
    expect(cell(lesson, 4).get_by_role("button", name="Check").first).to_be_visible(timeout=READY_MS)


def test_where_a_notebook_is_not_trusted_figures_are_whole_and_nothing_is_missed(
    shared_page: Page, jupyterlab: JupyterLab, notebooks: Path
) -> None:
    page = shared_page
    picture = plot_shards([("weight", 10, [(0, 0, 5), (1, 5, 10)])])
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "gone"}, "text/plain": ""}
    figure, replay = move_zero(stage=3), World(2).run(dist.barrier).replay()
    film = {"text/html": replay._repr_html_(), "text/plain": repr(replay)}
    shown = [picture._repr_mimebundle_(), widget, figure._repr_mimebundle_(), film]
    outputs = [nbformat.v4.new_output("display_data", data) for data in shown]
    write(notebooks / NAME, [nbformat.v4.new_code_cell("run.plot_shards()", outputs=outputs)])
    open_notebook(page, jupyterlab, NAME)

    image = cell(page, 0).get_by_role("img", name=picture.caption)
    expect(image).to_be_visible(timeout=READY_MS)
    assert image.evaluate("async image => { await image.decode(); return image.naturalWidth; }") > 100
    assert cell(page, 0).locator("figure").inner_text().split("\n")[0] == picture.caption
    expect(page.get_by_role("img", name=figure.still.caption)).to_be_visible()
    expect(page.get_by_text("run this cell, or trust the notebook")).to_be_visible()
    page.get_by_text("The replay as text").click()
    expect(page.get_by_text("Both ranks: barrier #1")).to_be_visible()
    assert "jp-mod-trusted" not in cell(page, 0).locator(".jp-RenderedHTML").first.get_attribute("class")
    expect(cell(page, 0).get_by_text("widget")).to_have_count(0)
