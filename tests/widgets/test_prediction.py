"""A prediction: committed before the run, locked, scored against what the run measured."""

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from IPython.core.formatters import DisplayFormatter

from course_lib import CourseError, predict
from course_lib.progress import Progress
from course_lib.quizzes.quantities import Unreadable
from course_lib.widgets.prediction import Outcome, PredictionWidget
from tests.widgets.test_card import click


def peak(progress: Progress) -> PredictionWidget:
    return PredictionWidget("zero1.peak", "How much does rank 0 hold at its peak?", progress, unit="MB")


def revealed(guess: PredictionWidget, measured: float | str) -> Outcome:
    guess.reveal(measured)
    assert guess.outcome is not None
    return guess.outcome


# What is predicted


def test_a_prediction_is_scored_against_what_was_measured(progress: Progress) -> None:
    guess = peak(progress)
    guess.commit("0.98 GB")

    assert "You predicted 0.98 GB, which is 980 MB. Run the cells below:" in guess.standing
    right = revealed(guess, 992_000_000)
    assert (repr(right), right.correct) == (
        "✓ Result: 992 MB. You predicted 0.98 GB, which is 980 MB. Right.",
        True,
    )
    assert revealed(guess, 656_000_000).correct is False


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("500", "You predicted 500 MB. Off. Too low."),
        ("992 kB", "You predicted 992 kB, which is 0.992 MB. Off. The digits are right, but 10^3 times too few"),
    ],
)
def test_a_wrong_prediction_is_told_why(progress: Progress, given: str, told: str) -> None:
    guess = peak(progress)
    guess.commit(given)
    assert told in repr(revealed(guess, 992e6))


@pytest.mark.parametrize(("tolerance", "written"), [(0.1, "16.4 MB"), (0, "16.3841 MB")])
def test_a_result_has_three_digits_unless_it_is_asked_exactly(
    progress: Progress, tolerance: float, written: str
) -> None:
    guess = PredictionWidget("zero1.peak", "How much?", progress, unit="MB", tolerance=tolerance)
    assert repr(revealed(guess, 16_384_100)) == f"Result: {written}."


def test_the_first_prediction_is_locked(progress: Progress) -> None:
    guess = peak(progress)
    guess.commit("500")
    guess.commit("992")
    peak(progress).commit("992")

    assert guess.given == peak(progress).given == "500"


def test_what_comes_after_the_measurement_is_no_prediction(progress: Progress) -> None:
    widget = peak(progress)
    widget.reveal(992e6)
    with pytest.raises(CourseError, match=r"zero1.peak has been measured already, and 992 would no longer be"):
        widget.commit("992")

    assert locked(widget)
    assert progress.prediction("zero1.peak") is None
    peak(progress).commit("992")  # the cell, run again, asks anew


def test_what_is_no_number_locks_nothing(progress: Progress) -> None:
    guess = peak(progress)
    with pytest.raises(Unreadable, match="cannot be read as a number"):
        guess.commit("a lot")
    assert guess.given is None
    assert progress.prediction("zero1.peak") is None


def test_without_a_prediction_the_measurement_is_shown_and_nothing_is_scored(progress: Progress) -> None:
    outcome = revealed(peak(progress), 992e6)
    assert outcome.correct is None
    assert repr(outcome) == "Result: 992 MB."
    assert progress.prediction("zero1.peak") is None


def test_a_prediction_is_found_again(progress: Progress) -> None:
    peak(progress).commit("980")
    again = peak(progress)

    assert "Locked.</strong> You predicted 980 MB." in again.message.value
    assert locked(again)
    assert revealed(again, 992e6).correct


@pytest.mark.parametrize("measured", [12, 12.0, Fraction(12), torch.tensor(12), torch.tensor(12.0)])
def test_any_kind_of_number_can_be_measured(progress: Progress, measured: float) -> None:
    guess = PredictionWidget("start.sum", "What is the sum?", progress, tolerance=0)
    guess.commit(12)
    assert revealed(guess, measured).correct


@pytest.mark.parametrize("measured", [None, "many", torch.ones(2), float("nan"), float("inf"), [1]])
def test_what_is_not_one_number_is_refused(progress: Progress, measured: object) -> None:
    with pytest.raises(CourseError, match=r"zero1\.peak: a prediction is scored against one number"):
        peak(progress).reveal(measured)  # type: ignore[arg-type]


def test_how_exact_it_must_be_is_said(progress: Progress) -> None:
    assert peak(progress).instruction == "Answer in MB; 10 % off is close enough."
    assert PredictionWidget("a", "b", progress, tolerance=0).instruction == "Answer with a number, exactly."


# One of several choices

CHOICES = ("It grows", "It stays: `grad` is reused", "2Ψ bytes go")


def change(progress: Progress) -> PredictionWidget:
    return PredictionWidget("zero2.peak", "What happens to the peak?", progress, choices=CHOICES)


def test_a_choice_is_right_or_wrong(progress: Progress) -> None:
    guess = change(progress)
    guess.commit("It grows")
    assert "You predicted “It grows”. Run the cells below:" in guess.standing
    outcome = revealed(guess, "2Ψ bytes go")
    assert (repr(outcome), outcome.correct) == ("✗ Result: “2Ψ bytes go”. You predicted “It grows”. Off.", False)
    assert revealed(guess, "It grows").correct


def test_without_a_prediction_the_right_choice_is_shown(progress: Progress) -> None:
    assert repr(revealed(change(progress), "It grows")) == "Result: “It grows”."


def test_a_prediction_from_before_its_choices_changed_is_not_called_wrong(progress: Progress) -> None:
    progress.predict("zero2.peak", "Between 0 and 0.1")
    widget = PredictionWidget("zero2.peak", "What happens to the peak?", progress, choices=CHOICES)
    assert "“Between 0 and 0.1” when the question had other answers" in widget.standing
    widget.reveal(CHOICES[1])
    assert widget.outcome is not None and widget.outcome.correct is None


def test_only_the_choices_can_be_predicted_and_revealed(progress: Progress) -> None:
    guess = change(progress)
    with pytest.raises(Unreadable, match="Choose one of: It grows; It stays"):
        guess.commit("7")
    with pytest.raises(CourseError, match=r"zero2\.peak: 7 is none of its choices"):
        guess.reveal(7)
    assert guess.given is None


def test_a_choice_is_picked_and_committed(progress: Progress) -> None:
    widget = change(progress)
    assert widget.question.value.count('<input type="radio"') == 3
    assert "It stays: <code>grad</code> is reused" in widget.question.value
    click(widget.children[1], "commit")
    assert "Choose one of" in widget.message.value
    click(widget.children[1], "commit", answer=CHOICES[1])
    assert "You predicted “It stays: <code>grad</code> is reused”." in widget.message.value
    assert locked(widget)


# The widget


def locked(widget: PredictionWidget) -> bool:
    """Whether the fields cannot be changed, and there is no button."""
    return "<fieldset disabled>" in widget.question.value and "button" not in widget.question.value


def test_a_prediction_is_typed_and_committed(progress: Progress) -> None:
    widget = peak(progress)
    click(widget.children[1], "commit", answer="lots")
    assert "<code>lots</code> cannot be read as a number." in widget.message.value
    assert not locked(widget)

    click(widget.children[1], "commit", answer="980")
    assert "Locked.</strong> You predicted 980 MB." in widget.message.value
    assert locked(widget)

    widget.reveal(992e6)
    assert "✓ Result:</strong> 992 MB. You predicted 980 MB. Right." in widget.message.value
    assert 'role="alert"' in widget.message.value
    assert "course-right" in widget.message.value


def test_the_call_does_what_the_button_does(progress: Progress) -> None:
    widget = peak(progress)
    widget.commit(980)
    assert 'value="980"' in widget.question.value
    assert locked(widget)
    assert "You predicted 980 MB. Run the cells below:" in repr(widget)


def test_as_the_last_value_of_a_cell_it_is_text_and_no_second_field(progress: Progress) -> None:
    shown, _ = DisplayFormatter().format(predict("start.sum", "How many?"))

    assert list(shown) == ["text/plain"] and "How many?" in shown["text/plain"]


def test_the_field_has_its_label(progress: Progress) -> None:
    assert "<label>Your prediction in MB <input" in peak(progress).question.value
    assert "<label>Your prediction <input" in PredictionWidget("a", "b", progress).question.value


def test_a_prediction_that_cannot_be_stored_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    widget = peak(Progress(tmp_path / "file" / "progress.sqlite3"))
    click(widget.children[1], "commit", answer="980")
    assert "Progress cannot be stored in" in widget.message.value


def test_a_cell_shows_the_field_and_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    predict("test.shown", "How many?", unit="ranks")
    assert "Predict: How many?" in capsys.readouterr().out
