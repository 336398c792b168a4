"""Figures follow the theme of the page: its `color-scheme`, or what nbconvert writes instead."""

import base64

import pytest
from playwright.sync_api import Page

from course_lib.plots import plot_mesh
from course_lib.plots.canvas import THEMES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MESH = plot_mesh({"shard": 4}, 4)
CORNER = """async data => {
    const image = new Image();
    image.src = 'data:image/png;base64,' + data;
    await image.decode();
    const context = new OffscreenCanvas(1, 1).getContext('2d');
    context.drawImage(image, 0, 0);
    return '#' + [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)]
        .map(part => part.toString(16).padStart(2, '0')).join('');
}"""
"""The colour of the top left pixel of a picture."""


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("preferred", ["light", "dark"])
def test_a_figure_has_the_colours_of_the_page_and_not_of_the_computer(page: Page, theme: str, preferred: str) -> None:
    page.emulate_media(color_scheme=preferred)  # type: ignore[arg-type]
    page.set_content(f"<body style='color-scheme: {theme}'>{MESH.image}</body>")
    assert paper(page) == THEMES[theme]["paper"]


@pytest.mark.parametrize(("theme", "light"), [("light", "true"), ("dark", "false")])
@pytest.mark.parametrize("preferred", ["light", "dark"])
def test_a_figure_has_the_colours_of_a_page_of_nbconvert(page: Page, theme: str, light: str, preferred: str) -> None:
    page.emulate_media(color_scheme=preferred)  # type: ignore[arg-type]
    page.set_content(f"<body data-jp-theme-light='{light}'>{MESH.html}</body>")
    assert paper(page) == THEMES[theme]["paper"]


def paper(page: Page) -> str:
    """The colour of the figure's corner."""
    colour: str = page.evaluate(CORNER, base64.b64encode(page.locator("img").screenshot()).decode())
    return colour
