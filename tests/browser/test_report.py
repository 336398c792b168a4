"""The page of a run in a browser: as a file in both themes and on a phone, and in JupyterLab."""

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell
from playwright.sync_api import Page, expect

from course_lib import World
from tests.browser.jupyterlab import JupyterLab, choose_theme, errors, open_notebook, run_all
from tests.browser.test_replay import RUN, rank_1_skips_an_iteration, saved
from tests.world.programs import failure

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 17, 17)"}
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


def test_the_page_has_the_theme_of_jupyterlab(shared_page: Page, jupyterlab: JupyterLab, notebooks: Path) -> None:
    page = shared_page
    saved(notebooks, "scratch.ipynb", new_code_cell(RUN.replace(".replay()", ".report()")))
    open_notebook(page, jupyterlab, "scratch.ipynb")
    run_all(page)
    assert errors(page) == []

    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", name="Outcome")).to_be_visible()
    for theme in ("Dark", "Light"):
        choose_theme(page, theme)
        expect(frame.locator("body")).to_have_css("background-color", PAPER[theme.lower()])
        expect(frame.frame_locator("iframe").locator("html")).to_have_attribute("data-theme", theme.lower())
