"""The quiz widget, driven as a learner drives it: values are set, buttons are clicked, feedback is read."""

import json
from pathlib import Path

import nbformat
import pytest
from ipywidgets import Widget
from nbclient import NotebookClient

from course_lib.progress import Progress
from course_lib.quizzes import Choice, Numeric, Option, Question, Quiz
from course_lib.widgets.quiz_widget import AnyOf, Card, Number, OneOf, QuizWidget
from course_lib.widgets.style import alert, inline, markup, plain
from tests.quizzes.sample_quiz import QUIZ, secrets

ROOT = Path(__file__).parents[2]


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    return Progress(tmp_path / "progress.sqlite3")


@pytest.fixture
def widget(progress: Progress) -> QuizWidget:
    return QuizWidget(QUIZ, progress)


def pick(card: Card, text: str) -> None:
    """Pick or tick the option with this text, and no other."""
    if isinstance(card.entry, OneOf):
        next(radio for radio in card.entry.radios if radio.options[0].endswith(text)).index = 0
    elif isinstance(card.entry, AnyOf):
        for box in card.entry.boxes:
            box.value = box.description.endswith(text)


def labels(card: Card) -> list[str]:
    assert isinstance(card.entry, OneOf)
    return [radio.options[0] for radio in card.entry.radios]


def press_enter(field: Number) -> None:
    field._handle_custom_msg({"event": "submit"}, [])  # what the browser sends


def test_one_option_is_picked_and_answered(widget: QuizWidget) -> None:
    card = widget.cards[0]
    pick(card, "A quarter of the sum")
    card.check_button.click()
    assert "<strong>✗ Not yet.</strong> That is <code>reduce_scatter</code>." in card.feedback.value

    pick(card, "The sum of all four")
    assert card.feedback.value == ""
    card.check_button.click()
    assert "<strong>✓ Right.</strong> Every rank holds all of it." in card.feedback.value
    assert "Score: 1 of 4 right." in widget.score.value


def test_the_score_says_when_the_quiz_is_done(widget: QuizWidget) -> None:
    for card in widget.cards:
        assert "Done." not in widget.score.value
        card.turn.answer(card.turn.problem.solution)
        card.check_button.click()
    assert "Score: 4 of 4 right. ✓ Done." in widget.score.value


def test_picking_an_option_lets_go_of_the_other(widget: QuizWidget) -> None:
    card = widget.cards[0]
    pick(card, "A quarter of the sum")
    first = card.entry.given
    pick(card, "The sum of all four")
    assert isinstance(card.entry, OneOf)
    assert [radio.index for radio in card.entry.radios].count(0) == 1
    assert len(card.entry.given) == 1 and card.entry.given != first


def test_several_options_are_ticked_and_answered(widget: QuizWidget) -> None:
    card = widget.cards[1]
    pick(card, "The parameters")
    card.check_button.click()
    assert "<strong>✗ Not yet.</strong> 1 missing." in card.feedback.value
    assert isinstance(card.entry, AnyOf)
    for box in card.entry.boxes:
        box.value = not box.description.endswith("The moments of Adam")
    card.check_button.click()
    assert "<strong>✓ Right.</strong> That is all of them." in card.feedback.value


def test_a_number_is_typed_and_answered_with_the_enter_key(widget: QuizWidget) -> None:
    field = widget.cards[2].entry
    assert isinstance(field, Number)
    field.value = "58.7"
    press_enter(field)
    assert "the fp32 master weights" in widget.cards[2].feedback.value
    assert "Your answer was read as 58.7 GiB." in widget.cards[2].feedback.value


def test_nothing_entered_is_told_and_not_counted(widget: QuizWidget, progress: Progress) -> None:
    for card in widget.cards:
        card.check_button.click()
        assert "<strong>Not marked.</strong>" in card.feedback.value
        assert card.again_button.layout.display == "none"
    assert progress.answers("sample") == []
    pick(widget.cards[0], "The sum of all four")
    widget.cards[0].check_button.click()
    assert [answer.value["reading"] for answer in progress.answers("sample")] == ["The sum of all four"]


def test_try_again_asks_anew_and_leaves_the_buttons_in_place(widget: QuizWidget) -> None:
    card = widget.cards[2]
    prompt, buttons = card.prompt.value, card.children[2]
    assert isinstance(card.entry, Number)
    card.entry.value = "58.7"
    card.check_button.click()
    assert card.again_button.layout.display is None
    card.again_button.click()

    assert card.prompt.value != prompt
    assert card.entry.value == ""
    assert "Asked anew." in card.feedback.value
    assert card.children[2] is buttons


def test_try_again_shows_the_options_in_another_order(widget: QuizWidget) -> None:
    card = widget.cards[0]
    pick(card, "A quarter of the sum")
    before = labels(card)
    card.again_button.click()
    assert {label[3:] for label in labels(card)} == {label[3:] for label in before}
    assert labels(card) != before
    assert card.entry.given == ""


def test_every_field_has_its_label(widget: QuizWidget) -> None:
    labels = [card.entry.description for card in widget.cards if isinstance(card.entry, Number)]
    assert labels == ["Your answer in GiB", "Your answer in bytes"]
    boxes = widget.cards[1].entry.boxes
    labels = [box.description for box in boxes]
    assert labels == ["a) The moments of Adam", "b) The parameters", "c) The gradients"]


def test_what_a_quiz_says_cannot_become_html(progress: Progress) -> None:
    hostile = "<script>alert(1)</script> & `<b>`"
    options = (Option(text=hostile, feedback=hostile, right=True), Option(text="no", feedback="No."))
    choice = Question(id="one", ask=Choice(prompt=hostile, options=options))
    number = Question(id="two", ask=Numeric(prompt="?", expected=1, right="Yes.", wrong="No."))
    widget = QuizWidget(Quiz(name="hostile", title=hostile, questions=(choice, number)), progress)
    pick(widget.cards[0], plain(hostile))
    assert isinstance(widget.cards[1].entry, Number)
    widget.cards[1].entry.value = hostile
    for card in widget.cards:
        card.check_button.click()
    values = [html for card in widget.cards for html in (card.prompt.value, card.feedback.value)]
    shown = "".join([widget.children[1].value, *values])
    assert "<script>" not in shown and "<b>" not in shown
    assert shown.count("<code>&lt;b&gt;</code>") == 3  # in the title, the prompt and the feedback


def test_markup_knows_paragraphs_code_and_blocks() -> None:
    assert markup("Call `a < b`.\n\nThen?") == "<p>Call <code>a &lt; b</code>.</p><p>Then?</p>"
    assert markup("See:\n\n```python\nx = 1\n\ny = '<'\n```\nWhy?") == (
        "<p>See:</p><pre>x = 1\n\ny = &#x27;&lt;&#x27;\n</pre><p>Why?</p>"
    )
    assert inline("`x` & y") == "<code>x</code> &amp; y"


def test_what_stands_between_asterisks_is_stressed_and_arithmetic_is_not() -> None:
    assert inline("every *other* rank, `2 * n * m` bytes") == (
        "every <em>other</em> rank, <code>2 * n * m</code> bytes"
    )
    assert inline("2 * n * m, a*b*c") == "2 * n * m, a*b*c"
    assert plain("before *this* `x * y`") == "before this x * y"


def test_an_alert_is_read_out_and_says_in_words_what_its_colour_says() -> None:
    assert alert("Right.", "First.\nSecond.", tone="right") == (
        '<div role="alert"><div class="course-feedback course-right">'
        "<p><strong>Right.</strong> First.</p><p>Second.</p></div></div>"
    )


def test_the_state_of_the_widget_holds_no_answer(widget: QuizWidget) -> None:
    state = json.dumps([model.get_state() for model in all_models(widget)], default=str)
    assert "What does rank 2 hold then?" in state  # the state is the real one
    assert [secret for secret in secrets() if secret in state] == []


def test_one_thread_handles_a_whole_quiz_also_after_try_again(widget: QuizWidget) -> None:
    pick(widget.cards[0], "A quarter of the sum")
    widget.cards[0].again_button.click()
    widget.cards[2].again_button.click()
    for card in widget.cards:
        assert all(model.comm._reply_subshell_for is None for model in all_models(card))


def all_models(widget: Widget) -> list[Widget]:
    return [widget, *(model for child in getattr(widget, "children", ()) for model in all_models(child))]


def test_the_repr_is_the_text_of_the_quiz(widget: QuizWidget) -> None:
    widget.cards[0].check_button.click()
    assert repr(widget) == QUIZ.text()


# What was answered before


def answer_all_wrong(progress: Progress) -> None:
    widget = QuizWidget(QUIZ, progress)
    pick(widget.cards[0], "A quarter of the sum")
    pick(widget.cards[1], "The parameters")
    for card in widget.cards[2:]:
        assert isinstance(card.entry, Number)
        card.entry.value = "5"
    for card in widget.cards:
        card.check_button.click()


def test_a_quiz_goes_on_where_it_was_left(progress: Progress) -> None:
    answer_all_wrong(progress)
    before = QuizWidget(QUIZ, progress)
    before.cards[0].again_button.click()
    pick(before.cards[0], "The sum of all four")
    before.cards[0].check_button.click()

    after = QuizWidget(QUIZ, progress)
    assert [card.entry.given for card in after.cards] == [card.entry.given for card in before.cards]
    assert [card.prompt.value for card in after.cards] == [card.prompt.value for card in before.cards]
    assert "<strong>✓ Right.</strong> Every rank holds all of it." in after.cards[0].feedback.value
    assert "<strong>✗ Not yet.</strong> 1 missing." in after.cards[1].feedback.value
    assert [card.again_button.layout.display for card in after.cards] == [None] * 4
    assert "Score: 1 of 4 right." in after.score.value
    assert repr(after) == f"{QUIZ.text()}\n\n1 of 4 right."


def test_what_is_there_from_the_start_is_not_read_out(progress: Progress) -> None:
    answer_all_wrong(progress)
    assert 'role="alert"' not in "".join(card.feedback.value for card in QuizWidget(QUIZ, progress).cards)


def test_an_answer_to_a_question_that_has_changed_is_left_out(progress: Progress) -> None:
    progress.answer("sample", "adam-bytes", 0, {"given": "16", "reading": "16 loaves"}, correct=True)
    progress.answer("sample", "dropped-question", 0, {"given": "a", "reading": "yes"}, correct=True)
    assert repr(QuizWidget(QUIZ, progress)) == QUIZ.text()


def test_questions_of_earlier_lessons_stand_below_and_are_kept_apart(progress: Progress) -> None:
    earlier = Quiz(name="sample: from earlier lessons", title="From earlier", questions=QUIZ.questions[3:])
    widget = QuizWidget(QUIZ, progress, earlier=earlier)
    card = widget.children[-1]
    card.entry.value = "16"
    card.check_button.click()

    assert "<strong>✓ Right.</strong>" in card.feedback.value
    assert "You missed these at first." in widget.children[-2].value
    assert "Score: 0 of 4 right." in widget.score.value
    assert progress.first_answers("sample") == {}
    again = QuizWidget(QUIZ, progress, earlier=earlier)
    assert "<strong>✓ Right.</strong>" in again.children[-1].feedback.value
    assert repr(again) == f"{QUIZ.text()}\n\n{earlier.text()}\n\n1 of 1 right."


def test_answers_that_cannot_be_stored_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    widget = QuizWidget(QUIZ, Progress(tmp_path / "file" / "progress.sqlite3"))
    pick(widget.cards[0], "The sum of all four")
    widget.cards[0].check_button.click()

    assert "<strong>✓ Right.</strong>" in widget.cards[0].feedback.value
    assert "Progress cannot be stored in" in widget.score.value
    assert "Progress cannot be stored in" in repr(widget)


@pytest.mark.slow
def test_a_saved_notebook_shows_the_questions_and_no_answer() -> None:
    imports = "from course_lib.progress import Progress\nfrom course_lib.widgets.quiz_widget import QuizWidget\n"
    source = f"{imports}from tests.quizzes.sample_quiz import QUIZ\nQuizWidget(QUIZ, Progress())"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    place = {"metadata": {"path": ROOT}}
    NotebookClient(notebook, timeout=60, kernel_name="python3", resources=place).execute()

    still, alive = (output.data for output in notebook.cells[0].outputs)
    summary = "Quiz: Ranks & shards (4 questions). Run this cell to take it."
    assert still["text/plain"] == f"{QUIZ.text()}\n\n{summary}"
    assert still["text/html"].startswith('<pre class="course-text"')
    assert "Ranks &amp; shards" in still["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in alive
    assert alive["text/plain"] == ""
    saved = nbformat.writes(notebook)
    assert "a) Its own tensor, as before" in saved
    assert [secret for secret in secrets() if json.dumps(secret)[1:-1] in saved] == []
