"""Figures that a reader moves, in a browser: by mouse and by keyboard, on a phone, and in both themes."""

from pathlib import Path

import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import Browser, Page, expect

from course_lib.parallel import one_forward_one_backward
from course_lib.plots import move_cuts, move_schedules, move_sequence, move_units, move_zero
from course_lib.plots.moving import Moving
from tests.browser.test_learning import axe_finds
from tests.browser.test_report import PAPER, WIDTHS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELL = "from course_lib.plots import move_zero\n\nmove_zero()"
UNITS = [("embedding", 40), ("block", 72), ("head", 40)]
FIGURES = {
    "zero": move_zero,
    "units": lambda: move_units(UNITS, world_size=4),
    "cuts": move_cuts,
    "sequence": move_sequence,
    "schedules": lambda: move_schedules({"1F1B": one_forward_one_backward}),
}


ILLEGIBLE = """() => {
    const found = new Set(), sizes = figure.controls.map(control => control.values.length);
    for (let setting = 0; setting < sizes.reduce((a, b) => a * b); setting++) {
        sizes.reduce((rest, size, number) => (chosen[number] = rest % size, Math.floor(rest / size)), setting);
        show();
        const texts = [...document.querySelectorAll("#figure text")].filter(text => text.textContent);
        const boxes = texts.map(text => [text.textContent, text.getBoundingClientRect()]);
        for (const [text, {left, right}] of boxes) if (left < -1 || right > innerWidth + 1) found.add(text);
        boxes.forEach(([text, a], number) => boxes.slice(number + 1).forEach(([other, b]) => {
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            if (wide > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4) found.add(`${text} / ${other}`);
        }));
    }
    return [...found];
}"""
"""The texts that are out of sight, or on each other, in any setting of a figure's controls."""


@pytest.fixture
def opened(page: Page, tmp_path: Path):
    """A function that opens a figure as a file. A request or an error of the page fails the test."""
    requests, problems = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))

    def open_figure(figure: Moving) -> Page:
        (tmp_path / "figure.html").write_text(figure.page, "utf-8")
        page.goto((tmp_path / "figure.html").as_uri())
        return page

    yield open_figure
    assert problems == []
    assert len(requests) == 1


def number(page: Page):
    """The large number of a figure."""
    return page.locator("#figure text[font-size='46']")


def test_the_number_counts_to_the_stage_that_is_chosen(opened) -> None:
    page = opened(move_zero())
    expect(number(page)).to_have_text("120 GB")
    page.evaluate("""() => {
        window.seen = new Set();
        const text = document.querySelector("#figure text[font-size='46']");
        new MutationObserver(() => seen.add(text.textContent)).observe(text, {childList: true});
    }""")
    page.get_by_text("3", exact=True).click()
    expect(number(page)).to_have_text("1.9 GB")
    counted = page.evaluate("[...seen].map(parseFloat)")
    assert counted == sorted(counted, reverse=True) and len(counted) > 3
    expect(page.locator("#caption")).to_contain_text("Stage 3 (ZeRO-3) on 64 GPUs: each holds 1.9 GB")


def test_with_less_motion_the_number_is_there_at_once(opened, page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(move_zero())
    shown = page.evaluate(
        "() => { choose(0, 3); return document.querySelector(\"text[font-size='46']\").textContent; }"
    )
    assert shown == "1.9 GB"


def test_the_keyboard_is_enough(opened) -> None:
    page = opened(move_zero())
    page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    gpus = page.get_by_role("slider", name="GPUs")
    expect(gpus).to_be_focused()
    expect(gpus).to_have_attribute("aria-valuetext", "1,024")
    expect(number(page)).to_have_text("0.1 GB")


def test_a_cursor_reads_the_boxes_under_mouse_and_keyboard(opened) -> None:
    page = opened(FIGURES["schedules"]())
    time, chart = page.get_by_role("slider", name="time"), page.locator("#figure svg").bounding_box()
    page.mouse.move(chart["x"] + 55, chart["y"] + 60)
    expect(time).to_have_attribute("aria-valuetext", "rank 0 1, rank 1 0, rank 2 0, rank 3 0")
    time.press("End")
    expect(time).to_have_attribute("aria-valuetext", "rank 0 1, rank 1 0, rank 2 0, rank 3 0")
    time.press("PageDown")
    page.get_by_role("group", name="parts of a rank").get_by_text("2").click()
    expect(page.locator("#caption")).to_contain_text("4 ranks, 8 micro-batches. 1F1B: idle 16 % of the time")


@pytest.mark.parametrize("name", ["schedules", "units"])
def test_the_sliders_thumb_stands_over_the_cursor(opened, name: str) -> None:
    page = opened(FIGURES[name]())
    for key, side in (("Home", "left"), ("End", "right")):
        page.get_by_role("slider", name="time").press(key)
        thumb, line = page.evaluate(
            "side => [time.getBoundingClientRect()[side] + (side === 'left' ? 8 : -8),"
            " reading.firstChild.getBoundingClientRect().left]",
            side,
        )
        assert abs(thumb - line) <= 2


def test_a_figure_in_a_page_follows_the_system(page: Page) -> None:
    look = "body { color: #111 } @media (prefers-color-scheme: dark) { body { color: #eee } }"
    page.emulate_media(color_scheme="light")
    page.set_content(f"<style>{look}</style>{move_zero().html}")
    root = page.frame_locator("iframe").locator("html")
    expect(root).to_have_attribute("style", "color-scheme: light;")
    page.emulate_media(color_scheme="dark")
    expect(root).to_have_attribute("style", "color-scheme: dark;")


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_play_goes_to_the_end_and_can_be_paused(opened, page: Page, motion: str) -> None:
    page.emulate_media(reduced_motion=motion)  # type: ignore[arg-type]
    opened(FIGURES["units"]())
    page.get_by_role("slider", name="time").fill("0.6")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.get_by_role("button", name="Play")).to_be_visible(timeout=10_000)
    assert float(page.get_by_role("slider", name="time").input_value()) == 1
    page.get_by_role("button", name="Play").click()  # from the start again
    page.get_by_role("button", name="Pause").click()
    assert float(page.get_by_role("slider", name="time").input_value()) < 0.5


@pytest.mark.parametrize(("theme", "width"), [("light", 270), ("dark", 1600)])  # a lesson on a phone has 328
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_fits_its_page_in_both_themes(opened, page: Page, name: str, theme: str, width: int) -> None:
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 900})
    opened(FIGURES[name]())
    needed, available = page.evaluate(WIDTHS)
    assert needed <= available == width
    assert page.evaluate(ILLEGIBLE) == []
    expect(page.locator("html")).to_have_css("background-color", PAPER[theme])
    assert axe_finds(page.main_frame, ["main"]) == []


def test_without_scripts_the_still_is_there(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "figure.html").write_text(move_zero(stage=2).page, "utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "figure.html").as_uri())
    expect(page.locator("#figure svg")).to_be_visible()
    expect(page.get_by_text("Stage 2 (ZeRO-2) on 64 GPUs: each holds 16.6 GB")).to_be_visible()
    context.close()


def test_it_moves_in_a_page_of_nbconvert(page: Page, tmp_path: Path) -> None:
    output = new_output("display_data", data=move_zero()._repr_mimebundle_())
    exported, _ = HTMLExporter().from_notebook_node(new_notebook(cells=[new_code_cell(CELL, outputs=[output])]))
    (tmp_path / "lesson.html").write_text(exported, "utf-8")
    page.route("http*://**", lambda route: route.abort())  # nbconvert's own scripts
    page.goto((tmp_path / "lesson.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.get_by_text("3", exact=True).click()
    expect(number(frame)).to_have_text("1.9 GB")
    expect(page.locator(".course-untrusted")).to_be_hidden()
