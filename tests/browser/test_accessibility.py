"""axe-core on everything that the course shows in a lesson: widgets, figures, tables and replays, in both themes."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Frame, Page, expect

from tests.browser.jupyterlab import READY_MS, JupyterLab, choose_theme, draw_all_cells, open_notebook, run_all

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OURS = [".course-widget", ".jp-RenderedHTML"]  # the rest of the page is JupyterLab's


@pytest.mark.parametrize("lesson", ["00-start-here", "01-ranks-and-collectives"])
def test_axe_finds_nothing_in_a_lesson(page: Page, jupyterlab: JupyterLab, lesson: str) -> None:
    open_notebook(page, jupyterlab, f"{lesson}.ipynb")
    draw_all_cells(page)
    run_all(page, seconds=240)
    expect(page.locator(".course-widget").last).to_be_visible(timeout=READY_MS)
    violations = []
    for theme in ("Light", "Dark"):
        choose_theme(page, theme)
        outside, *replays = page.frames
        violations += [*found(outside, OURS), *(one for frame in replays for one in found(frame, ["main"]))]
    assert violations == []


def found(frame: Frame, include: list[str]) -> list[str]:
    """Return what axe finds below the elements `include`: the rule, the element and what is wrong."""
    violations = Axe().run(frame, {"include": [[css] for css in include]}).response["violations"]
    return [
        f"{one['id']}: {node['html'][:200]}: {node['failureSummary']}" for one in violations for node in one["nodes"]
    ]
