"""A learner's copy of a lesson, opened for the first time, before any cell has run."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from course_lib.commands import work
from tests.browser.jupyterlab import NOTEBOOK, READY_MS, JupyterLab, open_notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_fresh_copy_shows_its_film_and_has_nothing_to_save(
    shared_page: Page, jupyterlab: JupyterLab, notebooks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = shared_page
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(jupyterlab.progress.parent / "jupyter_data_dir"))
    work.update(work=notebooks / "work")

    open_notebook(page, jupyterlab, "work/01-ranks-and-collectives.ipynb")
    page.evaluate(
        f"""() => {{
            const {{ content }} = {NOTEBOOK}, sources = content.widgets.map(cell => cell.model.sharedModel.source);
            content.scrollToItem(sources.findIndex(source => source.includes('.replay()')));
        }}"""
    )
    expect(page.frame_locator("iframe").locator("#caption")).to_be_visible(timeout=READY_MS)
    expect(page.locator(".course-saved").first).to_have_css("border-left-style", "solid")
    expect(page.locator(".jp-RenderedMarkdown > p").first).not_to_have_css("max-width", "none")
    expect(page.locator(".jp-RenderedMarkdown > table").first).to_have_css("margin-left", "0px")
    assert page.evaluate(f"{NOTEBOOK}.context.model.metadata.language_info.version")  # the kernel's, by now
    assert not page.evaluate(f"{NOTEBOOK}.context.model.dirty")
