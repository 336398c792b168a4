"""Film the replay of lesson 01's ring for the README: `make film`. Look at the film before you commit it."""

import io
from pathlib import Path

import nbformat
from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM_FLAGS, NOTEBOOKS, find_chromium

FILM = Path(__file__).with_name("film.png")
LESSON, CELL = "01-ranks-and-collectives.ipynb", "run-replay-the-ring"
SCREEN = {"width": 840, "height": 500}  # CSS pixels; GitHub shows a README about 840 wide
STYLE = """
    html { padding: 8px } .bar, .legend, #code, #notes, .quiet, .line:has(span) { display: none !important }
    * { transition: none !important }
"""
OUTSIDE = "body { margin: 0 } details { display: none }"
STEP_MS, LAST_MS = 1_600, 4_000


def shoot() -> list[Image.Image]:
    """Return a picture of each step of the replay that is saved in the lesson."""
    cells = nbformat.read(NOTEBOOKS / LESSON, as_version=4).cells
    (output,) = next(cell for cell in cells if cell.id == CELL).outputs
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        page = chromium.new_page(viewport=SCREEN, device_scale_factor=1.5)
        page.set_content(output.data["text/html"])
        page.add_style_tag(content=OUTSIDE)
        film = page.frames[1]
        film.add_style_tag(content=STYLE)
        pictures = [page.screenshot()]
        for _ in range(film.evaluate("document.getElementById('slider').max - 1")):
            film.evaluate("document.getElementById('next').click()")
            pictures.append(page.screenshot())
        chromium.close()
    return [Image.open(io.BytesIO(picture)).convert("P") for picture in pictures]


if __name__ == "__main__":
    first, *others = shoot()
    durations = [*[STEP_MS] * len(others), LAST_MS]
    first.save(FILM, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)
    print(f"{FILM}: {1 + len(others)} steps, {FILM.stat().st_size / 1000:.0f} kB")
