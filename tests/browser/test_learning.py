"""A learner in a browser solves an exercise wrong and right, asks for a hint, takes a quiz, and breaks a world.

At the end, axe-core reads what the lesson shows by then, in both themes.
"""

import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Frame, Locator, Page, expect

from tests.browser.jupyterlab import (
    NOTEBOOK,
    READY_MS,
    JupyterLab,
    choose_theme,
    draw_all_cells,
    open_notebook,
    run_all,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]

START = "00-start-here.ipynb"
OURS = [".course-widget", ".jp-RenderedHTML"]  # the rest of the page is JupyterLab's
TABLE_AND_REPLAY = "display(plots.table([{'rank': 0}]), World(2, replay=True).run(dist.get_rank).replay())"


@pytest.fixture(scope="module")
def lesson(shared_page: Page, server: JupyterLab) -> Page:
    """The first lesson, open, with every cell run. Each test works in different cells, or writes its cell again."""
    shutil.rmtree(server.progress, ignore_errors=True)  # what other modules did
    open_notebook(shared_page, server, START)
    draw_all_cells(shared_page)
    run_all(shared_page)
    return shared_page


def number_of(page: Page, text: str) -> int:
    """The cell whose source holds `text`."""
    sources = page.evaluate(f"{NOTEBOOK}.content.model.sharedModel.toJSON().cells.map(cell => String(cell.source))")
    (number,) = [number for number, source in enumerate(sources) if text in source]
    return int(number)


def run(page: Page, number: int, source: str) -> Locator:
    """Write `source` into a cell and run it as Shift+Enter would, without waiting for its end; the cell."""
    page.evaluate(
        f"""([number, source]) => {{
            const notebook = {NOTEBOOK}.content;
            notebook.model.sharedModel.cells[number].setSource(source);
            notebook.activeCellIndex = number;
            window.jupyterapp.commands.execute('notebook:run-cell');
        }}""",
        [number, source],
    )
    return page.locator(".jp-Notebook .jp-Cell").nth(number)


def solution(line: str) -> str:
    return f'@exercise("start.first")\ndef first() -> int:\n    """The square of this rank\'s number."""\n    {line}\n'


def test_an_exercise_is_solved_wrong_and_then_right(lesson: Page) -> None:
    number = number_of(lesson, '@exercise("start.first")')

    cell = run(lesson, number, solution("return dist.get_rank()"))
    expect(cell.get_by_text("Not right yet.").first).to_be_visible(timeout=READY_MS)
    expect(cell.get_by_role("table").first).to_be_visible()
    for role, name in (("columnheader", "compared"), ("cell", "differs")):  # never cut to "comp/ared"
        expect(cell.get_by_role(role, name=name).first).to_have_css("overflow-wrap", "normal")

    cell.get_by_role("button", name="Show hint 1 of").click()
    expect(cell.get_by_role("heading", name="Hint 1 of")).to_be_visible(timeout=READY_MS)

    cell = run(lesson, number, solution("return dist.get_rank() ** 2"))
    expect(cell.get_by_text("Passed.").first).to_be_visible(timeout=READY_MS)


def test_a_quiz_answers_every_answer(lesson: Page) -> None:
    quiz = lesson.locator(".jp-Notebook .jp-Cell").nth(number_of(lesson, 'quiz("start")'))
    field = quiz.get_by_label("Your answer")
    field.fill("7")
    quiz.get_by_role("button", name="Check").first.click()
    expect(quiz.get_by_role("alert").get_by_text("Not yet.").first).to_be_visible(timeout=READY_MS)

    quiz.get_by_role("button", name="Try again").first.click()
    expect(quiz.get_by_role("alert").get_by_text("Asked anew.")).to_be_visible(timeout=READY_MS)


def test_a_choice_that_acts_at_once_says_what_it_did(lesson: Page) -> None:
    picker = lesson.locator(".course-widget", has_text="Where ranks live").first
    for kind in ("processes", "simulated"):
        picker.get_by_label(f"{kind}:").click()
        expect(picker.get_by_text(f"ranks that are {kind}, from the next cell on")).to_be_visible(timeout=READY_MS)


def test_the_stop_button_ends_a_run_and_the_next_one_works(lesson: Page) -> None:
    number = number_of(lesson, "def one_rank_fails")
    spin = "def spin():\n    while True:\n        pass\n\n\nprint('the run begins')\nworld.run(spin)"
    cell = run(lesson, number, spin)
    expect(cell.get_by_text("the run begins", exact=True)).to_be_visible(timeout=READY_MS)
    lesson.wait_for_timeout(500)  # an interrupt before the run would end the cell without a word from the world
    lesson.evaluate("window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    expect(cell.get_by_text("KeyboardInterrupt: the run was interrupted")).to_be_visible(timeout=READY_MS)

    cell = run(lesson, number, "world.run(lambda: dist.get_rank() + 40)[2]")
    expect(cell.get_by_text("42", exact=True)).to_be_visible(timeout=READY_MS)


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_a_verdict_can_be_read_in_both_themes(lesson: Page, theme: str) -> None:
    choose_theme(lesson, "Dark" if theme == "Dark" else "Light")
    cell = run(lesson, number_of(lesson, '@exercise("start.first")'), solution("return dist.get_rank()"))
    told = cell.get_by_text("Not right yet.").first
    expect(told).to_be_visible(timeout=READY_MS)
    assert contrast(told) >= 4.5


def test_axe_finds_nothing(lesson: Page) -> None:
    """In widgets, figures, tables and replays: the lesson has no table and no replay of its own."""
    cell = run(lesson, number_of(lesson, "world.run(first)"), TABLE_AND_REPLAY)
    expect(cell.frame_locator("iframe").locator("#caption")).to_be_visible(timeout=READY_MS)
    expect(cell.get_by_role("table").first).to_be_visible()
    violations = []
    for theme in ("Light", "Dark"):
        choose_theme(lesson, theme)
        outside, *replays = lesson.frames
        violations += [*axe_finds(outside, OURS), *(one for frame in replays for one in axe_finds(frame, ["main"]))]
    assert violations == []


def axe_finds(frame: Frame, include: list[str]) -> list[str]:
    """Return what axe finds below the elements `include`: the rule, the element and what is wrong."""
    violations = Axe().run(frame, {"include": [[css] for css in include]}).response["violations"]
    return [
        f"{one['id']}: {node['html'][:200]}: {node['failureSummary']}" for one in violations for node in one["nodes"]
    ]


def contrast(text: Locator) -> float:
    """The contrast of a text against what is behind it, as WCAG 2.1 defines it."""
    colors = text.evaluate(
        """element => {
            const solid = color => { const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
                                     return a === 0 ? null : [r, g, b]; };
            let behind = element;
            while (behind && !solid(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
            return [solid(getComputedStyle(element).color),
                    behind ? solid(getComputedStyle(behind).backgroundColor) : [255, 255, 255]];
        }"""
    )
    lighter, darker = sorted((luminance(color) for color in colors), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: list[float]) -> float:
    channels = [value / 255 for value in color]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
