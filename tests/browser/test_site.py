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
from typing import Any
from urllib.parse import unquote, urldefrag

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect

import course_lib
from course_lib import plan, quizzes
from course_lib.planner import size
from course_lib.quizzes import Choice
from tests.browser.test_learning import axe_finds, contrast

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
START = ROOT / "notebooks" / "00-start-here.ipynb"
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
            if name in ("href", "src") and value and ("rel", "canonical") not in attrs:
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
    places = set[str]().union(*(Links(page).places for page in site.glob("reference/*.html")))
    public = {name for name in course_lib.__all__ if not isinstance(getattr(course_lib, name), ModuleType)}

    assert {f"course_lib.{name}" for name in public} <= places


FIRST = {"model": "llama-7b", "world_size": 8, "stage": 3, "sequence": 4096, "attention": "flash"}
"""The arguments of the planner's first plan."""


def open_planner(page: Page, address: str, plan: str = "") -> None:
    page.goto(f"{address}/planner/index.html{plan}")
    expect(page.get_by_label("GPUs", exact=True)).to_be_enabled(timeout=READY_MS)


def outline(page: Page) -> float:
    """Return the width of the outline in the row of the optimizer's step, in pixels; 0 without one."""
    row = page.locator(".plan li", has_text="optimizer step").locator(".plan-before")
    return float(row.evaluate("outline => outline.getBoundingClientRect().width")) if row.count() else 0.0


def test_the_planner_in_the_page_plans_as_the_library_does(page: Page, address: str) -> None:
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    open_planner(page, address)
    verdict = page.locator("#verdict")
    page.get_by_label("GPUs", exact=True).fill("32")
    page.get_by_text("2 + gradients").click()

    planned = plan(**FIRST | {"world_size": 32, "stage": 2})
    expect(verdict).to_contain_text(f"Fits Rank 0 holds at most {size(planned.peak_bytes)} of 80 GB")
    expect(page.locator("#plan")).to_contain_text("Stage 2 on 32 ranks")
    page.get_by_label("Hardware").select_option("8x H100 80GB, NVLink")
    expect(verdict).to_contain_text("Cannot be planned 32 ranks on 8x H100 80GB, NVLink")
    assert [url for url in requests if not url.startswith((address, "data:"))] == []


def test_a_plan_has_an_address_and_the_back_button_returns_to_it(page: Page, address: str) -> None:
    open_planner(page, address, "#model=llama-70b&world_size=64&stage=1&expandable=yes")
    expect(page.locator("#plan")).to_contain_text("Llama 2 70B, 69 billion parameters. Stage 1 on 64 ranks")
    expect(page.get_by_label("1 optimizer")).to_be_checked()
    expect(page.locator("[name=expandable]")).to_have_value("yes")

    page.get_by_label("GPUs", exact=True).fill("128")
    page.get_by_label("GPUs", exact=True).blur()
    page.locator("[name=model]").select_option("Llama 2 7B")
    expect(page).to_have_url(re.compile("#world_size=128&stage=1&expandable=yes$"))
    page.go_back()
    expect(page.locator("[name=model]")).to_have_value("llama-70b")
    page.go_back()
    expect(page.get_by_label("GPUs", exact=True)).to_have_value("64")
    expect(page.locator("#plan")).to_contain_text("Stage 1 on 64 ranks")


def test_what_is_wrong_or_hostile_in_an_address_is_shown_as_text(page: Page, address: str) -> None:
    open_planner(page, address, "#world_size=many&model=<img src=x onerror=window.hurt=1>&<b>=1&stage=2")
    verdict = page.locator("#verdict")

    expect(verdict).to_contain_text("GPUs = 'many': it has to be a whole number")
    expect(verdict).to_contain_text("Model = '<img src=x onerror=window.hurt=1>': there is no such model")
    expect(verdict).to_contain_text("There is no setting '<b>': it is left out.")
    expect(page.locator("#plan")).to_contain_text("Stage 2 on 8 ranks")
    assert page.locator("#verdict :is(img, b)").count() == 0
    assert page.evaluate("window.hurt") is None


def test_the_plan_before_is_an_outline_on_the_same_axis(page: Page, address: str) -> None:
    open_planner(page, address, "#stage=0")
    device, row = page.locator(".plan-axis small").first, page.locator(".plan li", has_text="optimizer step")
    before, total = device.bounding_box(), row.locator("div").bounding_box()
    assert outline(page) == 0
    page.get_by_label("0 nothing").focus()
    page.keyboard.press("ArrowLeft")  # from the first to the last: stage 3

    expect(page.locator(".plan-facts")).to_contain_text("was 136 GB")
    planned = plan(**FIRST | {"stage": 0})
    after = device.bounding_box()
    assert total and before and after
    assert outline(page) == pytest.approx(planned.peak_bytes / 160e9 * total["width"], abs=2)
    assert after["x"] == before["x"]

    page.get_by_label("GPUs", exact=True).press("Backspace")  # a number that is being typed is one change
    page.keyboard.type("16")
    expect(page.locator(".plan-facts")).to_contain_text("was 34.3 GB")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_the_planners_numbers_are_in_sight_on_every_screen(page: Page, address: str, width: int, scheme: Any) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    page.emulate_media(color_scheme=scheme)
    open_planner(page, address, "#model=llama-405b&stage=0&world_size=1024")

    expect(page.locator("#verdict")).to_be_in_viewport(ratio=0.9)  # before anything is scrolled
    for number in page.locator("#plan :is(li > strong, .plan-facts strong)").all():
        box = number.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= width
    page.get_by_text("More settings").click()
    wide = "[...document.querySelectorAll('.plan *')].filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth)"
    scrolls = f"{wide}.filter(e => /auto|scroll/.test(getComputedStyle(e).overflowX)).length"
    assert page.evaluate(scrolls) == 0
    assert axe_finds(page.main_frame, [".plan"]) == []


def test_without_scripts_the_planner_shows_its_first_plan(browser: Browser, address: str) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"{address}/planner/index.html")

    expect(page.locator("#verdict")).to_contain_text(f"Rank 0 holds at most {size(plan(**FIRST).peak_bytes)} of 80 GB")
    expect(page.get_by_label("GPUs", exact=True)).to_be_disabled()
    page.context.close()


def test_the_first_screen_has_a_figure_that_moves_and_the_first_page_is_small(page: Page, address: str) -> None:
    sizes: dict[str, int] = {}
    page.on("response", lambda response: sizes.update({response.url: len(response.body())}))
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{address}/index.html")
    slider = page.frame_locator("iframe").first
    expect(slider.get_by_text("120 GB").first).to_be_visible(timeout=READY_MS)
    slider.get_by_text("3", exact=True).click()
    expect(slider.get_by_text("1.9 GB").first).to_be_visible()
    for label in ("Try the planner", "Read lesson 02", "Install"):
        expect(page.get_by_role("link", name=label, exact=True).first).to_be_in_viewport()

    assert all(url.startswith((address, "data:")) for url in sizes)
    pictures = sum(map(len, re.findall(r"data:image/[^\"']*", page.content())))
    assert sum(size for url, size in sizes.items() if url.startswith("http") and ".png" not in url) - pictures < 300_000


def test_the_first_pages_film_plays_and_an_answer_unfolds(page: Page, address: str) -> None:
    page.goto(f"{address}/index.html")
    film = page.frame_locator(".tag_film iframe")
    expect(film.locator("#caption")).to_have_text("All 4 ranks: returned", timeout=READY_MS)

    page.goto(f"{address}/lessons/02-where-the-memory-goes.html")
    answer = page.locator("details.below-input").first
    expect(answer.locator(".output").first).to_be_hidden()
    answer.get_by_text("Show the answer").click()
    expect(answer.locator(".output").first).to_be_visible()


def test_a_quiz_answers_without_scripts(browser: Browser, address: str) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"{address}/lessons/02-where-the-memory-goes.html")
    (choice,) = [one for one in quizzes.get("memory").questions if one.id == "when-state-comes"]
    problem = choice.problem()
    assert isinstance(problem, Choice)
    for option in problem.options:
        answer = page.locator(".quiz details", has_text=option.text.replace("`", ""))
        expect(answer.locator("p")).to_be_hidden()
        answer.locator("summary").click()
        expect(answer.locator("p")).to_contain_text("✓ Right." if option.right else "✗ Not yet.")
    page.context.close()


def test_every_page_says_what_it_is_about_where_it_is_linked(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = path.read_text("utf-8")
        about = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', page))
        assert len(about["description"]) > 20 and about["og:title"] and about["og:description"], path
        assert (path.parent / about["og:image"]).exists() or about["og:image"].startswith("https://"), path


def test_the_reference_takes_no_sentence_with_a_colon_for_a_type(site: Path) -> None:
    page = (site / "reference" / "world.html").read_text("utf-8")
    assert "by rank: when its function returned" in page and "very likely wrong also warns: a" in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "lessons/02-where-the-memory-goes", "problems", "reference/world"])
def test_a_page_has_no_violation_that_axe_finds(page: Page, address: str, name: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(f"{address}/{name}.html")

    assert axe_finds(page.main_frame, ["article"]) == []


@pytest.mark.parametrize(("scheme", "theme"), [("dark", "auto"), ("light", "dark"), ("dark", "light")])
def test_the_saved_map_has_the_colors_of_the_sites_theme(page: Page, scheme: Any, theme: str) -> None:
    outputs = (output for cell in nbformat.read(START, 4).cells for output in cell.get("outputs", []))
    (saved,) = (html for one in outputs if "<progress" in (html := one.get("data", {}).get("text/html", "")))
    style = (ROOT / "docs" / "static" / "site.css").read_text("utf-8")
    dark = theme == "dark" or (scheme, theme) == ("dark", "auto")
    behind = "#131416" if dark else "#fff"
    page.emulate_media(color_scheme=scheme)
    page.set_content(f"<style>{style}</style><body data-theme={theme} style='background: {behind}'>{saved}</body>")

    assert contrast(page.locator(".course-card:not(.course-next-lesson) a").first) > 4.5
    drawn = page.locator("progress").first.evaluate("bar => getComputedStyle(bar).colorScheme")
    assert drawn == ("light dark" if theme == "auto" else theme)


def test_the_search_finds_a_lesson(page: Page, address: str) -> None:
    page.goto(f"{address}/search.html?q=bubble")

    expect(page.locator("#search-results").get_by_role("link", name="14 · Pipeline").first).to_be_visible()


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", ["index", "planner/index", "lessons/04-zero-1", "validation", "reference/planner"])
def test_a_page_fits_a_phone_and_a_laptop(page: Page, address: str, name: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{address}/{name}.html")

    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_wide_result_of_an_answer_is_not_cut_on_a_phone(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{address}/lessons/06-zero-3.html")
    page.evaluate("document.querySelectorAll('details').forEach(answer => { answer.open = true; })")

    wide = "[...document.querySelectorAll('.output')].filter(one => one.scrollWidth > one.clientWidth)"
    assert page.evaluate(f"{wide}.length") > 0
    assert page.evaluate(f"{wide}.filter(one => getComputedStyle(one).overflowX === 'visible').length") == 0
