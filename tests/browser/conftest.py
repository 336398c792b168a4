"""A JupyterLab and a browser for the tests of this folder."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.jupyterlab import JupyterLab, served

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHROMIUM_FLAGS = [
    "--no-sandbox",  # which Chromium refuses to run without as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str | None:
    """The path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def notebooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the notebooks, which the tests may change."""
    copy = tmp_path_factory.mktemp("lessons") / "notebooks"
    return shutil.copytree(NOTEBOOKS, copy, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))


@pytest.fixture(scope="session")
def server(notebooks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterLab]:
    """JupyterLab over that copy, which serves Notebook 7, too. Its kernels run the Python that runs the tests."""
    command = [sys.executable, "-m", "course_lib.commands.cli", "lab", f"--notebooks={notebooks}"]
    exposed = [f"--{app}.expose_app_in_browser=True" for app in ("LabApp", "JupyterNotebookApp")]
    with served([*command, *exposed], tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture
def jupyterlab(server: JupyterLab) -> JupyterLab:
    """The same JupyterLab, and a learner who has done nothing yet: what one test does, no other finds."""
    shutil.rmtree(server.progress, ignore_errors=True)
    return server


# The browser ends with this folder: while it lives, Playwright keeps an event loop running in this thread,
# and other tests could not start one.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        reason = "the browser tests need Chromium; on Debian: apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    """A page with cookies and storage of its own, as large as a laptop's screen."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with new_page(browser) as page:
        yield page


@pytest.fixture(scope="package")
def shared_page(browser: Browser) -> Iterator[Page]:
    """One page for all tests that open a notebook: Chromium takes seconds to load JupyterLab."""
    with new_page(browser) as page:
        yield page
