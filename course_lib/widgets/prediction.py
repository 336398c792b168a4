"""The widget in which a learner commits a prediction, and what a cell calls for it: `guess = predict(...)`."""

from __future__ import annotations

from typing import SupportsFloat

from ipywidgets import HTML, Button, Layout, VBox

from ..quizzes import Unreadable
from .guess import Guess, Outcome
from .message_order import keep_order
from .number_field import NumberField
from .style import alert, display_with_text, inline, markup, note, sheet


class PredictionWidget(VBox):
    """A question with a field. `commit` does what the button does, `reveal` shows the outcome."""

    def __init__(self, guess: Guess) -> None:
        self.guess = guess
        self.field = NumberField("Your prediction", unit=guess.unit, value=guess.given or "", entered=self.commit)
        self.button = Button(description="Commit", layout=Layout(width="auto", align_self="flex-start"))
        self.message = HTML()
        self.button.on_click(lambda _: self.commit())
        title = HTML(f"<h3>Predict</h3>{markup(guess.question)}<p>{inline(guess.instruction)}</p>")
        card = VBox([title, self.field, self.button, self.message])
        card.add_class("course-card")
        super().__init__([sheet(), card])
        self.add_class("course-widget")
        keep_order(self)
        self._lock()
        if guess.outcome:
            self.message.value = note("Last time.", guess.outcome.text, tone=_tone(guess.outcome))
        elif guess.given is not None:
            self.message.value = note("Locked.", guess.standing)

    def commit(self) -> None:
        """Commit what stands in the field."""
        try:
            self.guess.commit(self.field.value)
        except Unreadable as problem:
            self.message.value = alert("Not read.", str(problem))
        else:
            self.show_locked()

    def show_locked(self) -> None:
        """Show the prediction that was committed."""
        self.message.value = alert("Locked.", "\n".join(filter(None, [self.guess.standing, self.guess.notice])))
        self._lock()

    def reveal(self, outcome: Outcome) -> None:
        """Show what was measured."""
        self.message.value = alert("Result.", outcome.text.removeprefix("Result: "), tone=_tone(outcome))
        self._lock()

    def _lock(self) -> None:
        locked = self.guess.given is not None or self.guess.outcome is not None
        self.field.disabled = locked
        self.field.value = self.guess.given or self.field.value
        self.button.layout.display = "none" if locked else None


class PredictionCell:
    """A prediction in a notebook, with a call for all that its widget does.

    guess = predict("start.sum", "What does rank 0 have afterwards?")     # shows a field
    guess.commit("12")                                                    # or type it, and press Enter
    guess.reveal(run[0][0])                                               # score it
    """

    def __init__(self, guess: Guess) -> None:
        self.guess = guess
        self._widget = PredictionWidget(guess)

    def show(self) -> None:
        """Show the widget, and its text for where widgets cannot be shown."""
        summary = f"Prediction {self.guess.name}: run this cell to make it."
        display_with_text(self._widget, text=self.guess.text(), summary=summary)

    def commit(self, given: str | float) -> None:
        """Predict. The first prediction is locked: later ones change nothing.

        Raises:
            Unreadable: it is no number that fits the question.
            CourseError: it comes after the measurement.
        """
        self.guess.commit(given)
        self._widget.show_locked()

    def reveal(self, measured: SupportsFloat) -> Outcome:
        """Score the prediction against what was measured: bytes for memory, a share of one for "%", else a count.

        Raises:
            CourseError: `measured` is not one number.
        """
        outcome = self.guess.reveal(measured)
        self._widget.reveal(outcome)
        return outcome

    def __repr__(self) -> str:
        return self.guess.text()


def _tone(outcome: Outcome) -> str:
    return {True: "right", False: "wrong", None: "note"}[outcome.correct]
