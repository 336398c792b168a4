"""The quiz widget, driven as a learner drives it: values are set, buttons are clicked, feedback is read."""

import json
from pathlib import Path

import nbformat
import pytest
from ipywidgets import Widget
from nbclient import NotebookClient

from course_lib.quizzes import Answer, Choice, Numeric, Option, Question, Quiz
from course_lib.widgets.quiz import AnyOf, Card, Number, OneOf, QuizWidget, show
from course_lib.widgets.style import alert, inline, markup, plain
from tests.sample_quiz import QUIZ, secrets

ROOT = Path(__file__).parents[2]


@pytest.fixture
def widget() -> QuizWidget:
    return show(QUIZ)


def pick(card: Card, text: str) -> None:
    """Pick or tick the option with this text, and no other."""
    if isinstance(card.entry, OneOf):
        card.entry.value = next(label for label in card.entry.options if label.endswith(text))
    elif isinstance(card.entry, AnyOf):
        for box in card.entry.boxes:
            box.value = box.description.endswith(text)


def press_enter(field: Number) -> None:
    field._handle_custom_msg({"event": "submit"}, [])  # what the browser sends


def test_one_option_is_picked_and_answered(widget: QuizWidget) -> None:
    card = widget.cards[0]
    pick(card, "A quarter of the sum")
    card.check_button.click()
    assert "<strong>Not yet.</strong> That is <code>reduce_scatter</code>." in card.feedback.value

    pick(card, "The sum of all four")
    assert card.feedback.value == ""
    card.check_button.click()
    assert "<strong>Right.</strong> Every rank holds all of it." in card.feedback.value
    assert "Score: 1 of 4 right." in widget.score.value


def test_several_options_are_ticked_and_answered(widget: QuizWidget) -> None:
    card = widget.cards[1]
    pick(card, "The parameters")
    card.check_button.click()
    assert "<strong>Not yet.</strong> 1 missing." in card.feedback.value
    assert isinstance(card.entry, AnyOf)
    for box in card.entry.boxes:
        box.value = not box.description.endswith("The moments of Adam")
    card.check_button.click()
    assert "<strong>Right.</strong> That is all of them." in card.feedback.value


def test_a_number_is_typed_and_answered_with_the_enter_key(widget: QuizWidget) -> None:
    field = widget.cards[2].entry
    assert isinstance(field, Number)
    field.value = "58.7"
    press_enter(field)
    assert "the fp32 master weights" in widget.cards[2].feedback.value
    assert "Your answer was read as 58.7 GiB." in widget.cards[2].feedback.value


def test_nothing_entered_is_told_and_not_counted() -> None:
    stored: list[Answer] = []
    widget = show(QUIZ, on_answer=stored.append)
    for card in widget.cards:
        card.check_button.click()
        assert "<strong>Not marked.</strong>" in card.feedback.value
        assert card.again_button.layout.display == "none"
    assert stored == []
    pick(widget.cards[0], "The sum of all four")
    widget.cards[0].check_button.click()
    assert [answer.reading for answer in stored] == ["The sum of all four"]


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
    before = card.entry.options
    card.again_button.click()
    assert {label[3:] for label in card.entry.options} == {label[3:] for label in before}
    assert card.entry.options != before
    assert card.entry.index is None


def test_every_field_has_its_label(widget: QuizWidget) -> None:
    labels = [card.entry.description for card in widget.cards if isinstance(card.entry, Number)]
    assert labels == ["Your answer in GiB", "Your answer in bytes"]
    boxes = widget.cards[1].entry.boxes
    labels = [box.description for box in boxes]
    assert labels == ["a) The moments of Adam", "b) The parameters", "c) The gradients"]


def test_what_a_quiz_says_cannot_become_html() -> None:
    hostile = "<script>alert(1)</script> & `<b>`"
    options = (Option(text=hostile, feedback=hostile, right=True), Option(text="no", feedback="No."))
    choice = Question(id="one", ask=Choice(prompt=hostile, options=options))
    number = Question(id="two", ask=Numeric(prompt="?", expected=1, right="Yes.", wrong="No."))
    widget = show(Quiz(name="hostile", title=hostile, questions=(choice, number)))
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


def test_an_alert_is_read_out_and_says_in_words_what_its_colour_says() -> None:
    assert alert("Right.", "First.\nSecond.", tone="right") == (
        '<div role="alert" class="course-feedback course-right">'
        "<p><strong>Right.</strong> First.</p><p>Second.</p></div>"
    )


def test_the_state_of_the_widget_holds_no_answer(widget: QuizWidget) -> None:
    state = json.dumps([model.get_state() for model in all_models(widget)], default=str)
    assert "What does rank 2 hold then?" in state  # the state is the real one
    assert [secret for secret in secrets() if secret in state] == []


def all_models(widget: Widget) -> list[Widget]:
    return [widget, *(model for child in getattr(widget, "children", ()) for model in all_models(child))]


def test_the_repr_is_the_text_of_the_quiz(widget: QuizWidget) -> None:
    widget.cards[0].check_button.click()
    assert repr(widget) == QUIZ.text()


@pytest.mark.slow
def test_a_saved_notebook_shows_the_questions_and_no_answer() -> None:
    source = "from course_lib.widgets.quiz import show\nfrom tests.sample_quiz import QUIZ\nshow(QUIZ)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    place = {"metadata": {"path": ROOT}}
    NotebookClient(notebook, timeout=60, kernel_name="python3", resources=place).execute()

    still, alive = (output.data for output in notebook.cells[0].outputs)
    assert still["text/plain"] == QUIZ.text()
    assert still["text/html"].startswith('<pre class="course-text"')
    assert "Ranks &amp; shards" in still["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in alive
    assert alive["text/plain"] == "Quiz: Ranks & shards (4 questions). Run this cell to take it."
    saved = nbformat.writes(notebook)
    assert "a) Its own tensor, as before" in saved
    assert [secret for secret in secrets() if json.dumps(secret)[1:-1] in saved] == []
