"""The widget in which a learner commits a prediction, and what a cell calls for it: `guess = predict(...)`."""

from collections.abc import Callable, Sequence
from typing import SupportsFloat

from ipywidgets import HTML, VBox

from ..progress import own_progress
from ..quizzes import Unreadable
from .card import Card
from .guess import RESULT, Guess, Outcome
from .style import alert, display_with_text, form, inline, markup, note, number, options, sheet, title

HEADLINES = {True: f"✓ {RESULT}", False: f"✗ {RESULT}", None: RESULT}
TONES = {True: "right", False: "wrong", None: "note"}


class PredictionWidget(VBox):
    """A question with a field, with a call for all that its field and its button do.

    guess = predict("start.sum", "What does rank 0 have afterwards?")     # shows a field
    guess.commit("12")                                                    # or type it, and press Enter
    guess.reveal(run[0][0])                                               # score it
    """

    def __init__(self, guess: Guess) -> None:
        self.guess = guess
        self.question, self.message = HTML(), HTML()
        card = Card([self.question, self.message], {"commit": lambda fields: self._typed(fields.get("answer", ""))})
        super().__init__([sheet(), card])
        self.add_class("course-widget")
        self._ask()
        if guess.outcome:
            self.message.value = _result(note, guess.outcome)
        elif guess.given is not None:
            self.message.value = note("Locked.", guess.standing)

    def commit(self, given: str | float) -> None:
        """Predict. The first prediction is locked: later ones change nothing.

        Raises:
            Unreadable: it is no number that fits the question, or none of its choices.
            CourseError: it comes after the measurement.
        """
        self.guess.commit(given)
        self.message.value = alert("Locked.", "\n".join(filter(None, [self.guess.standing, self.guess.notice])))
        self._ask()

    def reveal(self, measured: SupportsFloat | str) -> Outcome:
        """Score the prediction against what was measured: bytes for memory, a share of one for "%", else a count.

        With choices: against the right one.

        Raises:
            CourseError: `measured` is not one number, or none of the choices.
        """
        outcome = self.guess.reveal(measured)
        self.message.value = _result(alert, outcome)
        self._ask()
        return outcome

    def _typed(self, given: str) -> None:
        """Commit what was typed, or the text of the option that was picked."""
        try:
            self.commit(given)
        except Unreadable as problem:
            self.message.value = alert("Not read.", str(problem))

    def _ask(self) -> None:
        guess, about = self.guess, f"course-{self.model_id}"
        given = guess.given or ""
        if guess.choices:
            choices = {choice: choice for choice in guess.choices}
            fields = options(guess.instruction, choices, picked=[given], about=about)
        else:
            fields = f"<p>{inline(guess.instruction)}</p>" + number("Your prediction", unit=guess.unit, value=given)
        locked = guess.given is not None or guess.outcome is not None
        ask = f"<form><fieldset disabled>{fields}</fieldset></form>" if locked else form("commit", fields, "Commit")
        question = f'<div id="{about}">{markup(guess.question)}</div>'
        self.question.value = title("Predict", "before you run the next cell") + question + ask

    def __repr__(self) -> str:
        return self.guess.text()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self)}  # as a cell's last value: `predict` has shown the widget


def predict(
    name: str, question: str, *, unit: str = "", tolerance: float = 0.1, choices: Sequence[str] = ()
) -> PredictionWidget:
    """Show a field for a prediction, before the cell runs that shows the result; see `PredictionWidget`.

    Args:
        name: the key under which the prediction is stored: lesson and subject, `start.sum`.
        question: what to predict, in Markdown. The answer is one number, or one of the choices.
        unit: "MB", "GiB", "%", "ranks", or nothing.
        tolerance: the error that is still right, relative to the measured value; 0 asks for the exact number.
        choices: the possible answers, in Markdown: `predict(..., choices=["It grows", "It stays"])`.
    """
    guess = Guess(name, question, own_progress(), unit=unit, tolerance=tolerance, choices=choices)
    widget = PredictionWidget(guess)
    state = "not made yet" if guess.given is None else f"you predicted {guess.given}"
    display_with_text(widget, title=guess.title, state=state, text=guess.text())
    return widget


def _result(message: Callable[..., str], outcome: Outcome) -> str:
    return message(HEADLINES[outcome.correct], outcome.text.removeprefix(f"{RESULT} "), tone=TONES[outcome.correct])
