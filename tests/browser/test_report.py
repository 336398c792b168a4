"""The page of a run in a browser, as a file. Replays, figures and pages in JupyterLab."""

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell
from playwright.sync_api import Page, expect

from course_lib import World
from tests.browser.jupyterlab import JupyterLab, choose_theme, errors, open_notebook, run_all
from tests.browser.test_replay import FAILURE, FIGURE, RUN, press, rank_1_skips_an_iteration, saved
from tests.world.programs import failure

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 17, 17)"}
REPORT = RUN.replace(".replay()", ".report()")
HEIGHTS = "frame => [frame.offsetHeight, frame.contentDocument.body.scrollHeight]"
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"


@pytest.mark.parametrize(("theme", "width"), [("light", 360), ("dark", 1280)])
def test_the_page_of_a_failed_run_fits_a_phone_and_follows_the_theme(
    page: Page, tmp_path: Path, theme: str, width: int
) -> None:
    failure(World(4, replay=True), rank_1_skips_an_iteration).report().save(tmp_path / "run.html")
    requests, problems = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 800})
    page.goto((tmp_path / "run.html").as_uri())

    player = page.frame_locator("iframe")
    expect(player.locator("html")).to_have_attribute("data-theme", theme)
    expect(player.locator("#failure")).to_be_visible()
    expect(page.locator("body")).to_have_css("background-color", PAPER[theme])
    expect(page.locator(".failed h3")).to_be_visible()
    needed, available = page.evaluate(WIDTHS)
    assert needed <= available == width
    assert problems == [] and [url for url in requests if not url.startswith("data:")] == [page.url]


def test_replays_figures_and_reports_play_in_jupyterlab_in_both_themes(
    shared_page: Page, jupyterlab: JupyterLab, notebooks: Path
) -> None:
    page = shared_page
    saved(notebooks, "scratch.ipynb", *map(new_code_cell, (RUN, FAILURE, FIGURE, REPORT)))
    open_notebook(page, jupyterlab, "scratch.ipynb")
    run_all(page)
    assert errors(page) == []

    good, bad, figure, report = (page.frame_locator("iframe").nth(index) for index in range(4))
    press(good, "ArrowRight")
    expect(good.locator("#caption")).to_have_text("Both ranks: barrier #1")
    press(good, "m")  # in a cell's output, JupyterLab would make the cell Markdown
    figure.get_by_label("0", exact=True).press("ArrowLeft")  # from the first to the last
    expect(figure.locator("#caption")).to_contain_text("Stage 3")
    figure.get_by_label("3", exact=True).press("m")
    expect(page.locator(".jp-MarkdownCell")).to_have_count(0)
    expect(bad.locator("#failure")).to_contain_text("The ranks call different collectives")
    expect(bad.locator("#code li", has_text="dist.broadcast").locator(".here")).to_have_text("1")
    expect(report.get_by_role("heading", name="Outcome")).to_be_visible()
    for theme in ("Dark", "Light"):
        choose_theme(page, theme)
        expect(good.locator("html")).to_have_attribute("data-theme", theme.lower())
        expect(figure.locator("html")).to_have_css("background-color", PAPER[theme.lower()])
        expect(report.locator("body")).to_have_css("background-color", PAPER[theme.lower()])
        expect(report.frame_locator("iframe").locator("html")).to_have_attribute("data-theme", theme.lower())
    height = page.locator("iframe").nth(2).evaluate(HEIGHTS)
    assert abs(height[0] - height[1]) <= 2
