"""The site that `make site` has written: its links, and its pages in a browser."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urldefrag

import pytest
from playwright.sync_api import Browser, Page, expect

import course_lib
from course_lib import plan
from course_lib.planner import size

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
SPHINX = ["-q", "-W", "-d", "build/doctrees", "docs", "build/site"]
READY_MS = 60_000
"""For a busy machine to compile Python's 10 MB and to run it."""

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site() -> Path:
    """The pages, built again where a source has changed since `make site`."""
    if find_spec("myst_nb") is None or not SITE.exists():
        pytest.skip("the site needs more packages than the tests, and npm: run `make site` first")
    subprocess.run([sys.executable, "-m", "sphinx", *SPHINX], cwd=ROOT, check=True)
    return SITE


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a server of this machine has the site, as GitHub Pages has it: in a folder."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site.parent)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/site"
        server.shutdown()


class Links(HTMLParser):
    """The addresses that a page names, those that a browser fetches by itself, and its places."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.places: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            if name in ("href", "src") and value:
                (self.links if tag == "a" else self.fetched).add(value)


def test_every_link_leads_somewhere_and_no_page_asks_another_host(site: Path) -> None:
    pages = {path: Links(path) for path in site.rglob("*.html")}
    assert len(pages) > 25
    broken = []
    for path, page in pages.items():
        assert not {link for link in page.fetched if re.match(r"https?:|//", link)}, path
        for link in page.links | page.fetched:
            if re.match(r"[a-z]+:", link):
                continue
            file, place = urldefrag(link)
            target = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
            if not target.exists() or (place and target in pages and unquote(place) not in pages[target].places):
                broken.append((str(path.relative_to(site)), link))
    assert broken == []


def test_the_reference_has_every_public_name(site: Path) -> None:
    places = Links(site / "reference.html").places
    public = {name for name in course_lib.__all__ if not isinstance(getattr(course_lib, name), ModuleType)}

    assert {f"course_lib.{name}" for name in public} <= places


def test_the_planner_in_the_page_plans_as_the_library_does(page: Page, address: str) -> None:
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{address}/planner/index.html")
    verdict, gpus = page.locator("#verdict"), page.get_by_label("GPUs")
    expect(gpus).to_be_enabled(timeout=READY_MS)
    gpus.press("ArrowRight")
    gpus.press("ArrowRight")
    page.get_by_label("ZeRO stage").select_option("2: gradients sharded, too")

    planned = plan(model="llama-7b", world_size=32, stage=2, precision="mixed", sequence=4096, attention="flash")
    expect(verdict).to_have_text(f"Fits: rank 0 holds at most {size(planned.peak_bytes)}.")
    expect(page.locator("#plan img")).to_have_attribute("alt", re.compile("Llama 2 7B, stage 2 on 32 ranks"))
    page.get_by_label("Hardware").select_option("8x H100 80GB, NVLink")
    expect(verdict).to_contain_text("Cannot be planned: 32 ranks on 8x H100 80GB, NVLink")
    assert [url for url in requests if not url.startswith((address, "data:"))] == []


def test_without_scripts_the_planner_shows_its_first_plan(browser: Browser, address: str) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"{address}/planner/index.html")

    planned = plan(model="llama-7b", world_size=8, stage=3, precision="mixed", sequence=4096, attention="flash")
    expect(page.locator("#verdict")).to_have_text(f"Fits: rank 0 holds at most {size(planned.peak_bytes)}.")
    expect(page.get_by_label("GPUs")).to_be_disabled()
    page.context.close()


def test_the_first_pages_film_plays_and_an_answer_unfolds(page: Page, address: str) -> None:
    page.goto(f"{address}/index.html")
    film = page.frame_locator(".tag_film iframe")
    expect(film.locator("#caption")).to_have_text("All 3 ranks: returned", timeout=READY_MS)

    page.goto(f"{address}/lessons/02-where-the-memory-goes.html")
    answer = page.locator("details.hide").first
    expect(answer.locator(".output").first).to_be_hidden()
    answer.get_by_text("Show the answer").click()
    expect(answer.locator(".output").first).to_be_visible()


def test_the_search_finds_a_lesson(page: Page, address: str) -> None:
    page.goto(f"{address}/search.html?q=bubble")

    expect(page.locator("#search-results").get_by_role("link", name="14 · Pipeline").first).to_be_visible()


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", ["index", "planner/index", "lessons/04-zero-1", "validation", "reference"])
def test_a_page_fits_a_phone_and_a_laptop(page: Page, address: str, name: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{address}/{name}.html")

    assert page.evaluate("document.documentElement.scrollWidth") <= width
