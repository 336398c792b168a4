"""Figures follow the theme of the page, which they cannot see except by its `color-scheme`."""

import base64

import pytest
from playwright.sync_api import Page

from course_lib.plots import plot_zero
from course_lib.plots.canvas import THEMES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

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
    page.set_content(f"<body style='color-scheme: {theme}'>{plot_zero(7.5e9, world_size=64).image}</body>")
    shown = base64.b64encode(page.locator("img").screenshot()).decode()

    assert page.evaluate(CORNER, shown) == THEMES[theme]["paper"]
