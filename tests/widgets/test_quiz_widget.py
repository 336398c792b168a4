"""The quiz widget, driven as a learner drives it: values are set, buttons are clicked, feedback is read."""

import json
import re
from pathlib import Path

import pytest
from ipywidgets import Widget

from course_lib.progress import Progress
from course_lib.quizzes import Choice, Numeric, Option, Question, Quiz
from course_lib.widgets.quiz_widget import QuestionCard, QuizWidget
from course_lib.widgets.style import alert, inline, markup
from tests.progress.test_progress import answer
from tests.quizzes.sample_quiz import QUIZ, secrets
from tests.widgets.test_card import click, text


@pytest.fixture
def widget(progress: Progress) -> QuizWidget:
    return QuizWidget(QUIZ, progress)


def letters(card: QuestionCard, *texts: str) -> str:
    """The letters of the options with these texts."""
    problem = card.turn.problem
    assert isinstance(problem, Choice)
    return ", ".join(letter for letter, option in problem.lettered.items() if option.text in texts)


def test_one_option_is_picked_and_answered(widget: QuizWidget) -> None:
    card = widget.cards[0]
    click(card, "check", answer=letters(card, "A quarter of the sum"))
    assert "✗ Not yet. That is reduce_scatter." in text(card.feedback)

    click(card, "check", answer=letters(card, "The sum of all four"))
    assert "✓ Right. Every rank holds all of it." in text(card.feedback)
    assert "1 of 4 right." in text(widget.score)


def test_the_score_says_when_the_quiz_is_done(widget: QuizWidget) -> None:
    for card in widget.cards:
        assert "Done." not in widget.score.value
        click(card, "check", answer=card.turn.problem.solution)
    assert "4 of 4 right. ✓ Done." in text(widget.score)


def test_several_options_are_ticked_and_answered(widget: QuizWidget) -> None:
    card = widget.cards[1]
    click(card, "check", answer=letters(card, "The parameters"))
    assert "✗ Not yet. 1 missing." in text(card.feedback)
    click(card, "check", answer=letters(card, "The parameters", "The gradients"))
    assert "✓ Right. That is all of them." in text(card.feedback)


def test_a_number_is_typed_and_answered(widget: QuizWidget) -> None:
    click(widget.cards[2], "check", answer="58.7")
    assert "the fp32 master weights" in widget.cards[2].feedback.value
    assert "Your answer was read as 58.7 GiB." in widget.cards[2].feedback.value


def test_nothing_entered_is_told_and_not_counted(widget: QuizWidget, progress: Progress) -> None:
    for card in widget.cards:
        click(card, "check")
        assert "Not marked." in text(card.feedback)
        assert "Try again" not in text(card.feedback)
    assert progress.answers("sample") == []
    click(widget.cards[0], "check", answer=letters(widget.cards[0], "The sum of all four"))
    assert [answer.reading for answer in progress.answers("sample")] == ["The sum of all four"]


def test_try_again_asks_anew(widget: QuizWidget) -> None:
    card = widget.cards[2]
    before = card.question.value
    click(card, "check", answer="58.7")
    assert card.question.value == before  # what is typed is not overwritten
    assert "Try again" in text(card.feedback)
    click(card, "again")

    assert card.question.value != before
    assert 'value=""' in card.question.value
    assert "Asked anew." in text(card.feedback)


def test_try_again_shows_the_options_in_another_order(widget: QuizWidget) -> None:
    card = widget.cards[0]
    click(card, "check", answer=letters(card, "A quarter of the sum"))
    before = options_of(card)
    click(card, "again")
    assert {label[3:] for label in options_of(card)} == {label[3:] for label in before}
    assert options_of(card) != before
    assert " checked" not in card.question.value


def options_of(card: QuestionCard) -> list[str]:
    return re.findall(r"<span>(.*?)</span></label>", card.question.value)


def test_every_field_has_its_label(widget: QuizWidget) -> None:
    one, several, gib, count = (card.question.value for card in widget.cards)
    assert "<label>Your answer in GiB <input" in gib and "<label>Your answer in bytes <input" in count
    for html, role in ((one, "radiogroup"), (several, "group")):
        (named,) = re.findall(rf'<fieldset aria-labelledby="([^"]+)" role="{role}">', html)
        assert f'<div id="{named}"><p>' in html
    assert options_of(widget.cards[1])[1:] == ["b) The parameters", "c) The gradients"]


def test_what_a_quiz_says_cannot_become_html(progress: Progress) -> None:
    hostile = "<script>alert(1)</script> & `<b>`"
    options = (Option(text=hostile, feedback=hostile, right=True), Option(text="no", feedback="No."))
    choice = Question(id="one", ask=Choice(prompt=hostile, options=options))
    number = Question(id="two", ask=Numeric(prompt="?", expected=1, right="Yes.", wrong="No."))
    widget = QuizWidget(Quiz(name="hostile", title=hostile, questions=(choice, number)), progress)
    click(widget.cards[0], "check", answer=letters(widget.cards[0], hostile))
    click(widget.cards[1], "check", answer=hostile)
    again = QuizWidget(widget.sitting.quiz, progress)  # with the answer in its field
    cards = [*widget.cards, *again.cards]
    shown = "".join(
        [widget.score.value, *(html for card in cards for html in (card.question.value, card.feedback.value))]
    )
    assert "<script>" not in shown and "<b>" not in shown
    assert shown.count("<code>&lt;b&gt;</code>") >= 4  # in the title, the prompt, the option and the feedback


def test_markup_knows_paragraphs_lists_and_coloured_code() -> None:
    assert markup("Call `a < b`.\n\nThen?") == "<p>Call <code>a &lt; b</code>.</p>\n<p>Then?</p>\n"
    assert markup("- one\n- two").count("<li>") == 2
    code = markup("```python\nif x < 1: pass\n```")
    assert '<span class="k">if</span>' in code and "&lt;" in code


def test_a_line_that_begins_with_a_number_is_no_list() -> None:
    assert inline("12. You predicted `11`, *not* 2 * n * m.") == (
        "12. You predicted <code>11</code>, <em>not</em> 2 * n * m."
    )


def test_an_alert_is_read_out_and_says_in_words_what_its_colour_says() -> None:
    assert alert("Right.", "First.\nSecond.", tone="right") == (
        '<div role="alert"><div class="course-feedback course-right"><p>'
        '<strong class="course-chip course-right">Right.</strong> First.</p><p>Second.</p></div></div>'
    )


def test_the_state_of_the_widget_holds_no_answer(widget: QuizWidget) -> None:
    state = json.dumps([model.get_state() for model in all_models(widget)], default=str)
    assert "What does rank 2 hold then?" in state  # the state is the real one
    assert [secret for secret in secrets() if secret in state] == []


def all_models(widget: Widget) -> list[Widget]:
    return [widget, *(model for child in getattr(widget, "children", ()) for model in all_models(child))]


def test_the_repr_is_the_text_of_the_quiz(widget: QuizWidget) -> None:
    click(widget.cards[0], "check")
    assert repr(widget) == repr(QUIZ)


# What was answered before


def answer_all_wrong(progress: Progress) -> None:
    one, several, *numbers = QuizWidget(QUIZ, progress).cards
    click(one, "check", answer=letters(one, "A quarter of the sum"))
    click(several, "check", answer=letters(several, "The parameters"))
    for card in numbers:
        click(card, "check", answer="5")


def test_a_quiz_goes_on_where_it_was_left(progress: Progress) -> None:
    answer_all_wrong(progress)
    card = QuizWidget(QUIZ, progress).cards[0]
    click(card, "again")
    click(card, "check", answer=letters(card, "The sum of all four"))

    after = QuizWidget(QUIZ, progress)
    one, several, *numbers = (card.question.value for card in after.cards)
    assert options_of(after.cards[0]) == options_of(card)
    assert one.count(" checked") == several.count(" checked") == 1
    assert all('value="5"' in number for number in numbers)
    assert "✓ Right. Every rank holds all of it." in text(after.cards[0].feedback)
    assert "✗ Not yet. 1 missing." in text(after.cards[1].feedback)
    assert all("Try again" in text(card.feedback) for card in after.cards)
    assert "1 of 4 right." in text(after.score)
    assert repr(after) == f"{QUIZ}\n\n1 of 4 right."


def test_what_is_there_from_the_start_is_not_read_out(progress: Progress) -> None:
    answer_all_wrong(progress)
    assert 'role="alert"' not in "".join(card.feedback.value for card in QuizWidget(QUIZ, progress).cards)


def test_an_answer_to_a_question_that_has_changed_is_left_out(progress: Progress) -> None:
    for question in ("adam-bytes", "dropped-question"):
        answer(progress, "sample", question, reading="7 loaves", correct=True)
    answer(progress, "sample", "held-by-stage2", given="1", reading=QUIZ.questions[2].answer("1").reading, correct=True)
    assert repr(QuizWidget(QUIZ, progress)) == repr(QUIZ)


def test_questions_of_earlier_lessons_stand_below_and_are_kept_apart(progress: Progress) -> None:
    earlier = Quiz(name="sample: from earlier lessons", title="From earlier", questions=QUIZ.questions[3:])
    widget = QuizWidget(QUIZ, progress, earlier=earlier)
    card = widget.children[-1]
    click(card, "check", answer="16")

    assert "✓ Right." in text(card.feedback)
    assert "You missed these at first." in widget.children[-2].value
    assert "0 of 4 right." in text(widget.score)
    assert progress.first_answers("sample") == {}
    again = QuizWidget(QUIZ, progress, earlier=earlier)
    assert "✓ Right." in text(again.children[-1].feedback)
    assert repr(again) == f"{QUIZ}\n\n{earlier}\n\n1 of 1 right."


def test_answers_that_cannot_be_stored_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    widget = QuizWidget(QUIZ, Progress(tmp_path / "file" / "progress.sqlite3"))
    click(widget.cards[0], "check", answer=letters(widget.cards[0], "The sum of all four"))

    assert "✓ Right." in text(widget.cards[0].feedback)
    assert "Progress cannot be stored in" in widget.score.value
    assert "Progress cannot be stored in" in repr(widget)
