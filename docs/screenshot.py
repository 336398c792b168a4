"""Take the README's picture in a real JupyterLab: `make screenshot`. Look at the picture before you commit it."""

import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM_FLAGS, NOTEBOOKS, find_chromium
from tests.browser.jupyterlab import NOTEBOOK, open_notebook, run_all, served

PICTURE = Path(__file__).with_name("screenshot.png")
LESSON = "03-data-parallel.ipynb"
EXERCISE = '@exercise("data_parallel.broadcast_model")'  # the cell after it shows what each rank returned
ANSWER = "for param in model.parameters():\n        dist.broadcast(param.data, src=0)"  # which forgets the buffers
SCREEN = {"width": 960, "height": 880}  # CSS pixels; GitHub shows a README about 840 wide
DRAWN_MS = 2_000  # JupyterLab draws and scrolls after the kernel is idle


def take(home: Path) -> None:
    """Answer one exercise as learners do, run the lesson up to the next cell, and write the picture."""
    lessons = shutil.copytree(NOTEBOOKS, home / "notebooks")
    exercise = answer(lessons / LESSON)
    command = [sys.executable, "-m", "course_lib.commands.cli", "lab", "--LabApp.expose_app_in_browser=True"]
    with served([*command, f"--notebooks={lessons}"], home) as server, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        page = chromium.new_page(viewport=SCREEN, device_scale_factor=1.5)
        open_notebook(page, server, LESSON)
        page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        run_all(page)
        page.wait_for_timeout(DRAWN_MS)
        page.evaluate(f"number => {NOTEBOOK}.content.widgets[number].node.scrollIntoView()", exercise)
        page.wait_for_timeout(DRAWN_MS)
        page.locator("#jp-main-dock-panel").screenshot(path=PICTURE)


def answer(path: Path) -> int:
    """Write ANSWER into the lesson at `path`, end the lesson one cell later, and return the exercise's cell number."""
    lesson = nbformat.read(path, as_version=4)
    number = next(number for number, cell in enumerate(lesson.cells) if cell.source.startswith(EXERCISE))
    cell = lesson.cells[number]
    cell.source = cell.source.replace("raise NotImplementedError", ANSWER)
    del lesson.cells[number + 2 :]
    nbformat.write(lesson, path)
    return number


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        take(Path(home))
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")
