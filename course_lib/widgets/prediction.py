"""`guess = predict(...)`: committed before the cell runs, locked, and scored against what the cell measures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsFloat

from IPython.display import display
from ipywidgets import HTML, VBox

from ..errors import CourseError
from ..progress import Progress, own_progress
from ..quizzes import Numeric, Unreadable, read, write
from .card import Card
from .style import alert, display_with_text, form, inline, markup, note, number, options, sheet, title

HEADLINES = {True: "✓ Result:", False: "✗ Result:", None: "Result:"}
TONES = {True: "right", False: "wrong", None: "note"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A measured value compared with the prediction. `correct` is None if nothing was predicted."""

    text: str
    correct: bool | None = None

    def __repr__(self) -> str:
        return f"{HEADLINES[self.correct]} {self.text.replace('`', '')}"

    def _repr_html_(self) -> str:
        return f'<div class="course-widget">{self.box(note)}</div>'

    def box(self, message: Callable[..., str]) -> str:
        """Return the outcome as `message` writes it: `note`, or `alert`, which is read out."""
        return message(HEADLINES[self.correct], self.text, tone=TONES[self.correct])


class PredictionWidget(VBox):
    """A question with a field, with a call for all that its field and its button do. Its repr is all of it as text.

    guess = predict("start.sum", "What does rank 0 have afterwards?")     # shows a field
    guess.commit("12")                                                    # or type it, and press Enter
    guess.reveal(run[0][0])                                               # score it, and show the result here

    `progress` stores the prediction; `predict` documents the other arguments.
    """

    def __init__(
        self,
        name: str,
        question: str,
        progress: Progress,
        *,
        unit: str = "",
        tolerance: float = 0.1,
        choices: Sequence[str] = (),
    ) -> None:
        self.name, self.prompt, self.unit, self.tolerance = name, question, unit, tolerance
        self.choices, self._progress = tuple(choices), progress
        self.given: str | None = progress.prediction(name)
        self.outcome: Outcome | None = None
        self.question, self.message = HTML(), HTML()
        card = Card([self.question, self.message], {"commit": lambda fields: self._typed(fields.get("answer", ""))})
        super().__init__([sheet(), card])
        self.add_class("course-widget")
        if self.given is not None:
            self.message.value = note("Locked.", self.standing)
        self._ask()

    def commit(self, given: str | float) -> None:
        """Predict: "38.5 GB", "7B", "2e9", "1/4", a number in the unit of the question, or one of the choices.

        The first prediction is locked: later ones change nothing.

        Raises:
            Unreadable: it is no number that fits the question, or none of its choices.
            CourseError: it comes after the measurement.
        """
        if self.given is None and self.outcome is not None:
            raise CourseError(
                f"{self.name} has been measured already, and {given} would no longer be a prediction. Run the cell "
                "with the question again to be asked anew."
            )
        if not self.choices:
            read(str(given), self.unit)
        elif given not in self.choices:
            raise Unreadable(f"Choose one of: {'; '.join(self.choices)}.")
        self.given = str(self._progress.predict(self.name, str(given)))
        self.message.value = alert("Locked.", "\n".join(filter(None, [self.standing, self._progress.notice])))
        self._ask()

    def reveal(self, measured: SupportsFloat | str) -> None:
        """Score the prediction against what was measured: bytes for memory, a share of one for "%", else a count.

        With choices: against the right one. The cell that calls this shows the result, and so does the card.

        Raises:
            CourseError: `measured` is not one number, or none of the choices.
        """
        self.outcome = outcome = self._of_a_choice(measured) if self.choices else self._of_a_number(measured)
        self.message.value = outcome.box(alert)
        self._ask()
        display(outcome)

    @property
    def standing(self) -> str:
        """A sentence with the prediction, if there is one."""
        if self.given is None:
            return ""
        if self._outdated:
            return f"You predicted {self._reading} when the question had other answers, so it is not scored."
        return f"You predicted {self._reading}. Run the cells below: the verdict comes with the result."

    @property
    def instruction(self) -> str:
        """The form of the answer: its unit and its required accuracy."""
        if self.choices:
            return "Choose one."
        unit = f"Answer in {self.unit}" if self.unit else "Answer with a number"
        near = f"; {100 * self.tolerance:g} % off is close enough." if self.tolerance else ", exactly."
        return unit + near

    def __repr__(self) -> str:
        choices = [f"- {choice}" for choice in self.choices]
        lines = [f"Predict: {self.prompt}", *choices, self.instruction, str(self.outcome or self.standing)]
        return "\n".join(filter(None, [*lines, self._progress.notice]))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self)}  # as a cell's last value: `predict` has shown the widget

    def _typed(self, given: str) -> None:
        """Commit what was typed, or the text of the option that was picked."""
        try:
            self.commit(given)
        except Unreadable as problem:
            self.message.value = alert("Not read.", str(problem))

    def _ask(self) -> None:
        about, given = f"course-{self.model_id}", self.given or ""
        if self.choices:
            fields = options(self.instruction, {one: one for one in self.choices}, picked=[given], about=about)
        else:
            fields = f"<p>{inline(self.instruction)}</p>" + number("Your prediction", unit=self.unit, value=given)
        locked = self.given is not None or self.outcome is not None
        ask = f"<form><fieldset disabled>{fields}</fieldset></form>" if locked else form("commit", fields, "Commit")
        question = f'<div id="{about}">{markup(self.prompt)}</div>'
        self.question.value = title("Predict", "before you run the next cell") + question + ask

    @property
    def _outdated(self) -> bool:
        """Whether an earlier version of the course had the choice that was predicted, and this one has not."""
        return bool(self.choices) and self.given is not None and self.given not in self.choices

    @property
    def _reading(self) -> str:
        try:
            return f"“{self.given}”" if self.choices else read(self.given or "", self.unit).text
        except Unreadable:  # the question's unit has changed since
            return self.given or ""

    def _of_a_choice(self, right: SupportsFloat | str) -> Outcome:
        if right not in self.choices:
            raise CourseError(
                f"{self.name}: {right!r} is none of its choices. Give reveal() one of {list(self.choices)}."
            )
        return self._outcome(f"“{right}”.", self.given == right)

    def _of_a_number(self, measured: SupportsFloat | str) -> Outcome:
        try:
            value = Fraction(measured if isinstance(measured, int | Fraction) else float(measured))
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise CourseError(
                f"{self.name}: a prediction is scored against one number, and this is {type(measured).__name__} "
                f"({error}). Give reveal() one number, such as run.memory[0].peak_bytes."
            ) from None
        problem = Numeric(
            prompt=self.prompt, expected=value, unit=self.unit, tolerance=self.tolerance, right="", wrong=""
        )
        feedback = problem.answer(self.given or "")
        said = feedback.message.partition("\n")[0].strip()
        why = "" if feedback.correct else f" {said}"
        return self._outcome(f"{write(value, self.unit, rounded=self.tolerance > 0)}.", feedback.correct, why)

    def _outcome(self, found: str, correct: bool, why: str = "") -> Outcome:
        if self.given is None or self._outdated:
            return Outcome(text=f"{found} {self.standing}".strip())
        score = "Right." if correct else "Off."
        return Outcome(text=f"{found} You predicted {self._reading}. {score}{why}", correct=correct)


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
    widget = PredictionWidget(name, question, own_progress(), unit=unit, tolerance=tolerance, choices=choices)
    state = "run this cell to see yours" if widget.given is None else f"you predicted {widget.given}"
    display_with_text(widget, title=f"Predict: {question}", state=state)
    return widget
