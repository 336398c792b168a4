"""Film the replay of lesson 01's ring for the README: `make film`. Look at the film before you commit it."""

import io
from pathlib import Path

import nbformat
from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM_FLAGS, NOTEBOOKS, find_chromium

FILM = Path(__file__).with_name("film.png")
LESSON, CELL = "01-ranks-and-collectives.ipynb", "run-replay-the-ring"
SCREEN = {"width": 840, "height": 376}  # CSS pixels; GitHub shows a README about 840 wide
STYLE = """
    html { padding: 8px } .bar, .legend, #code, #notes, .card, h1 { display: none !important } .scene { display: block }
    * { transition: none !important }
"""
OUTSIDE = "body { margin: 0 } details { display: none }"
MOVING, MOVE_MS, STEP_MS, LAST_MS = 10, 60, 1_600, 4_000
"""Pictures of a move, milliseconds of each, of a step, and of the last step."""
SEEK = "at => document.getAnimations().forEach(move => { move.pause(); move.currentTime = at; })"


def shoot() -> tuple[list[Image.Image], list[int]]:
    """Return pictures of the replay that is saved in the lesson, and for how many milliseconds each is shown."""
    cells = nbformat.read(NOTEBOOKS / LESSON, as_version=4).cells
    (output,) = next(cell for cell in cells if cell.id == CELL).outputs
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        page = chromium.new_page(viewport=SCREEN, device_scale_factor=1.5)
        page.set_content(output.data["text/html"])
        page.add_style_tag(content=OUTSIDE)
        film = page.frames[1]
        film.add_style_tag(content=STYLE)
        pictures, durations = [], []
        for step in range(1, 1 + film.evaluate("steps")):
            film.evaluate("step => go(step, true)", step)
            count = MOVING if film.evaluate("document.getAnimations().length") else 1
            for number in range(1, 1 + count):
                film.evaluate(SEEK, 600 * number / count - 1)
                pictures.append(page.screenshot())
            durations += [*[MOVE_MS] * (count - 1), STEP_MS]
        chromium.close()
    return [Image.open(io.BytesIO(picture)).convert("P") for picture in pictures], [*durations[:-1], LAST_MS]


if __name__ == "__main__":
    (first, *others), durations = shoot()
    first.save(FILM, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)
    print(f"{FILM}: {len(durations)} pictures, {FILM.stat().st_size / 1000:.0f} kB")
