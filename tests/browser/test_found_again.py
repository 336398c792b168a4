"""What a learner has done is there again: after a reload of the page, and in a kernel that was started anew."""

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.jupyterlab import (
    NOTEBOOK,
    READY_MS,
    JupyterLab,
    draw_all_cells,
    open_notebook,
    run_all,
    wait_for,
    wait_until_idle,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAME = "found-again.ipynb"
STUB = '@exercise("ranks.hello")\ndef hello() -> str:\n    raise NotImplementedError'
SLOW = '@exercise("ranks.hello")\ndef hello():\n    import time\n\n    time.sleep(9)'
WRONG = '@exercise("ranks.hello")\ndef hello() -> str:\n    return f"rank {dist.get_rank()} of 4 says hello"'
CELLS = [
    "import torch.distributed as dist\nfrom course_lib import course_map, exercise, predict, quiz",
    'guess = predict("browser.sum", "What is `6 * 7`?", tolerance=0)',
    "guess.reveal(6 * 7)",
    STUB,
    'quiz("start")',
    "course_map()",
]
PREDICT, REVEAL, EXERCISE, QUIZ, MAP = range(1, 6)
SET_SOURCES = f"texts => texts.forEach((text, n) => {NOTEBOOK}.content.model.sharedModel.cells[n].setSource(text))"
RUN_CELL = f"""async ([number, text, wait]) => {{
    const notebook = {NOTEBOOK}.content;
    notebook.model.sharedModel.cells[number].setSource(text);
    notebook.activeCellIndex = number;
    const ended = window.jupyterapp.commands.execute('notebook:run-cell');
    if (wait) await ended;
}}"""

TYPE_AND_CLICK = """(field, text) => {
    field.value = text;
    field.dispatchEvent(new Event('input', {bubbles: true}));
    field.closest('.course-card').querySelector('button').click();
}"""
REMOVE_AND_INSERT = """async widget => {
    const parent = widget.parentNode;
    widget.remove();
    parent.append(widget);
    await new Promise(done => setTimeout(done, 500));
}"""
FIELDS = {PREDICT: "Your prediction", QUIZ: "Your answer"}


@pytest.fixture(scope="module")
def opened(shared_page: Page, server: JupyterLab, notebooks: Path) -> Page:
    """A short lesson, open, with all its cells on the page."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, notebooks / NAME)
    open_notebook(shared_page, server, NAME)
    draw_all_cells(shared_page)
    return shared_page


@pytest.fixture
def lesson(opened: Page, jupyterlab: JupyterLab) -> Page:
    """The lesson with every cell run as it came. The tests share its kernel, and have a record of their own."""
    opened.evaluate(SET_SOURCES, CELLS)
    run_all(opened)
    return opened


def cell(page: Page, number: int) -> Locator:
    return page.locator(".jp-Notebook .jp-Cell").nth(number)


def source(page: Page, number: int) -> str:
    return str(page.evaluate(f"n => {NOTEBOOK}.content.model.sharedModel.cells[n].getSource()", number))


def run(page: Page, number: int, text: str) -> Locator:
    """Write `text` into a cell and run it, until the kernel is idle; the cell."""
    page.evaluate(RUN_CELL, [number, text, True])
    wait_until_idle(page)
    return cell(page, number)


def keep_busy(page: Page, number: int, seconds: float) -> None:
    """Write into a cell what lets the kernel sleep, and run it, until the kernel has begun."""
    page.evaluate(RUN_CELL, [number, f"import time; time.sleep({seconds})", False])
    wait_for(page, f"{NOTEBOOK}.sessionContext.session.kernel.status === 'busy'")


def restart(page: Page) -> None:
    """A new kernel, and every cell run again."""
    page.evaluate(f"async () => await {NOTEBOOK}.sessionContext.session.kernel.restart()")
    wait_until_idle(page)
    run_all(page)


def seen(page: Page, number: int, text: str) -> None:
    """Wait for a text in a cell's outputs; the plain-text form of a living widget is there too, and hidden."""
    expect(cell(page, number).get_by_text(text).locator("visible=true").first).to_be_visible(timeout=READY_MS)


def test_all_that_was_done_is_found_again(lesson: Page) -> None:
    run(lesson, PREDICT, CELLS[PREDICT])  # to be asked anew: it was measured already when all cells were run
    field = cell(lesson, PREDICT).get_by_label("Your prediction")
    field.fill("41")
    field.press("Enter")
    seen(lesson, PREDICT, "You predicted 41.")
    run(lesson, REVEAL, CELLS[REVEAL])
    seen(lesson, PREDICT, "42. You predicted 41. Off.")

    run(lesson, EXERCISE, WRONG)
    seen(lesson, EXERCISE, "Not right yet.")
    cell(lesson, EXERCISE).get_by_role("button", name="Show hint 1 of").click()
    seen(lesson, EXERCISE, "Hint 1 of")

    cell(lesson, QUIZ).get_by_label("Your answer").fill("7")
    cell(lesson, QUIZ).get_by_role("button", name="Check").first.click()
    seen(lesson, QUIZ, "That is the rank's number")

    lesson.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    wait_for(lesson, f"!{NOTEBOOK}.context.model.dirty")
    lesson.reload()
    wait_for(lesson, f"{NOTEBOOK}?.context?.isReady")
    wait_until_idle(lesson)
    seen(lesson, PREDICT, "42. You predicted 41. Off.")
    seen(lesson, EXERCISE, "Hint 1 of")
    seen(lesson, QUIZ, "That is the rank's number")
    assert source(lesson, EXERCISE) == WRONG

    run(lesson, EXERCISE, STUB)
    restart(lesson)
    seen(lesson, PREDICT, "42. You predicted 41. Off.")
    expect(cell(lesson, PREDICT).get_by_label("Your prediction")).to_be_disabled()
    seen(lesson, EXERCISE, "Welcome back.")
    seen(lesson, EXERCISE, "Hint 1 of")
    expect(cell(lesson, QUIZ).get_by_label("Your answer")).to_have_value("7")
    seen(lesson, QUIZ, "That is the rank's number")
    expect(cell(lesson, MAP).locator("li", has_text="Say hello by rank")).to_contain_text("1 attempt, 1 hint")

    cell(lesson, EXERCISE).get_by_role("button", name="Insert my last attempt below").click()
    wait_for(lesson, f"{NOTEBOOK}.content.model.sharedModel.cells.length === {len(CELLS) + 1}")
    assert source(lesson, EXERCISE + 1) == WRONG


def test_the_last_attempt_replaces_the_cell_that_asks_for_it(lesson: Page) -> None:
    run(lesson, EXERCISE, WRONG)
    run(lesson, QUIZ, 'exercise("ranks.hello").insert()')

    assert source(lesson, QUIZ) == WRONG


def test_the_stop_button_of_a_check_ends_it(lesson: Page) -> None:
    lesson.evaluate(SET_SOURCES, [*CELLS[:EXERCISE], SLOW, "print('the next cell ran')"])
    lesson.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    seen(lesson, EXERCISE, "Checked 0 of 6 cases")
    cell(lesson, EXERCISE).get_by_role("button", name="Stop").click()

    # Without the click the check would tell of the time limit, or that nothing was returned.
    seen(lesson, EXERCISE, "the check was stopped after 0 of 6 cases")
    seen(lesson, QUIZ, "the next cell ran")
    wait_until_idle(lesson)


def test_a_click_right_after_typing_marks_what_was_typed(lesson: Page) -> None:
    """Also after Try again, and also where the kernel has not answered the click before."""
    card = cell(lesson, QUIZ).locator(".course-card").first
    for answer in range(1000, 1006):
        for given in (answer - 500, answer):
            card.get_by_label("Your answer").evaluate(TYPE_AND_CLICK, str(given))
        expect(card.get_by_text(f"read as {answer:,}.")).to_be_visible(timeout=READY_MS)
        if answer % 2:
            card.get_by_role("button", name="Try again").click()
            expect(card.get_by_text("Asked anew.")).to_be_visible(timeout=READY_MS)


def test_a_button_that_is_written_again_keeps_the_keyboard_focus(lesson: Page) -> None:
    hints = run(lesson, EXERCISE, WRONG)
    hints.get_by_role("button", name="Show hint 1 of").press("Enter")
    expect(hints.get_by_role("button", name="Show hint 2 of")).to_be_focused(timeout=READY_MS)

    cell(lesson, QUIZ).get_by_label("Your answer").fill("7")
    lesson.keyboard.press("Enter")
    cell(lesson, QUIZ).get_by_role("button", name="Try again").press("Enter")
    expect(cell(lesson, QUIZ).get_by_label("Your answer")).to_be_focused(timeout=READY_MS)
    expect(cell(lesson, QUIZ).get_by_label("Your answer")).to_have_value("")


def test_a_cell_that_scrolls_out_and_in_again_answers_a_click_once(lesson: Page) -> None:
    hints = run(lesson, EXERCISE, WRONG)
    expect(hints.get_by_role("button", name="Show hint 1 of")).to_be_visible(timeout=READY_MS)
    hints.locator(".course-widget").evaluate(REMOVE_AND_INSERT)
    hints.get_by_role("button", name="Show hint 1 of").click()
    expect(hints.get_by_role("button", name="Show hint 2 of")).to_be_visible(timeout=READY_MS)
    expect(hints.locator(".course-inbox input")).to_have_value('[[1,"hint",{}]]')


def test_a_quiz_is_taken_by_keyboard_alone_and_a_group_of_options_is_named_by_its_question(lesson: Page) -> None:
    run(lesson, QUIZ, 'quiz("start")')
    quiz, keys = cell(lesson, QUIZ), lesson.keyboard
    group = quiz.get_by_role("radiogroup", name="One of four ranks raises an exception")
    expect(group.get_by_role("radio", name="a) The rank is started again")).to_be_visible()
    quiz.get_by_label("Your answer").focus()
    keys.press("Control+A")
    keys.type("70")
    keys.press("Tab")
    expect(quiz.get_by_role("button", name="Check").first).to_be_focused()
    keys.press("Enter")
    expect(quiz.get_by_role("alert").get_by_text("Right.").first).to_be_visible(timeout=READY_MS)

    keys.press("Tab")
    expect(quiz.get_by_role("button", name="Try again").first).to_be_focused()
    keys.press("Tab")
    keys.press("Space")
    expect(quiz.get_by_role("radio").first).to_be_checked()
    keys.press("ArrowDown")
    expect(quiz.get_by_role("radio").nth(1)).to_be_checked()
    expect(quiz.get_by_role("radio").first).not_to_be_checked()
    keys.press("Tab")
    keys.press("Enter")
    expect(quiz.get_by_role("alert").get_by_text("This happens at once").first).to_be_visible(timeout=READY_MS)


def test_an_answer_is_marked_while_a_cell_runs(lesson: Page) -> None:
    """The last test: a kernel that was interrupted drops cells that are run at once."""
    run(lesson, PREDICT, CELLS[PREDICT])
    keep_busy(lesson, REVEAL, seconds=3600)
    for field, answer, key in ((PREDICT, "41", "Enter"), (QUIZ, "70", "Tab")):
        cell(lesson, field).get_by_label(FIELDS[field]).focus()
        lesson.keyboard.press("Control+A")
        lesson.keyboard.type(answer)
        lesson.keyboard.press(key)
    lesson.keyboard.press("Enter")  # on the button
    seen(lesson, PREDICT, "You predicted 41.")
    seen(lesson, QUIZ, "Right.")
    lesson.evaluate("window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    wait_until_idle(lesson)
