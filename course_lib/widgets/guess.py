"""A prediction: committed before the cell runs, locked, and scored against the measured value. No widget."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsFloat

from ..errors import CourseError
from ..progress import Progress
from ..quizzes import Numeric, Unreadable, read, write


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A measured value compared with the prediction. `correct` is None if nothing was predicted."""

    text: str
    correct: bool | None = None

    def __repr__(self) -> str:
        return self.text


class Guess:
    """One prediction.

    Args:
        name: the key under which it is stored: lesson and subject, `start.all-reduce`.
        question: what to predict, in Markdown.
        progress: the record that stores it.
        unit: "MB", "GiB", "%", "ranks", or nothing.
        tolerance: relative; 0 asks for the exact number.
    """

    def __init__(self, name: str, question: str, progress: Progress, *, unit: str = "", tolerance: float = 0.1) -> None:
        self.name, self.question, self.unit, self.tolerance = name, question, unit, tolerance
        self._progress = progress
        stored = progress.prediction(name)
        self.given: str | None = stored.value if stored else None
        self.outcome: Outcome | None = None
        if stored and stored.measured is not None:
            self.outcome = self._outcome(Fraction(stored.measured))

    def commit(self, given: str | float) -> None:
        """Predict: "38.5 GB", "7B", "2e9", "1/4", or a number without a unit, which is in the unit of the question.

        The first prediction is locked: later ones change nothing.

        Raises:
            Unreadable: this is no such number.
            CourseError: it comes after the measurement.
        """
        if self.given is None and self.outcome is not None:
            raise CourseError(
                f"{self.name} has been measured already, and {given} would no longer be a prediction. Run the cell "
                "with the question again to be asked anew."
            )
        read(str(given), self.unit)
        self.given = str(self._progress.predict(self.name, str(given)).value)

    def reveal(self, measured: SupportsFloat) -> Outcome:
        """Score the prediction against the measured value: bytes for memory, a share of one for "%", else a count.

        Raises:
            CourseError: `measured` is not one number.
        """
        try:
            value = measured if isinstance(measured, int | Fraction) else Fraction(float(measured))
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise CourseError(
                f"{self.name}: a prediction is scored against one number, and this is {type(measured).__name__} "
                f"({error}). Give reveal() one number, such as run.memory[0].peak_bytes."
            ) from None
        self.outcome = self._outcome(Fraction(value))
        if self.outcome.correct is not None:
            self._progress.score(self.name, str(Fraction(value)), self.outcome.correct)
        return self.outcome

    @property
    def standing(self) -> str:
        """A sentence with the prediction, if there is one."""
        if self.given is None:
            return ""
        return f"You predicted {self._reading}. Run the next cell to see."

    @property
    def instruction(self) -> str:
        """The unit of the answer, and its required accuracy."""
        unit = f"Answer in {self.unit}" if self.unit else "Answer with a number"
        return unit + (f"; {100 * self.tolerance:g} % off is close enough." if self.tolerance else ", exactly.")

    @property
    def notice(self) -> str:
        """A problem with the learner's record; empty while all is well."""
        return self._progress.notice

    def text(self) -> str:
        """Return everything as plain text."""
        question = f"Predict: {self.question}\n{self.instruction}"
        return "\n".join(filter(None, [question, str(self.outcome or self.standing), self.notice]))

    @property
    def _reading(self) -> str:
        try:
            return read(self.given or "", self.unit).text
        except Unreadable:  # the question's unit has changed since, or the prediction was imported
            return self.given or ""

    def _outcome(self, measured: Fraction) -> Outcome:
        found = f"Result: {write(measured, self.unit)}."
        if self.given is None:
            return Outcome(text=found)
        problem = Numeric(
            prompt=self.question, expected=measured, unit=self.unit, tolerance=self.tolerance, right="", wrong=""
        )
        feedback = problem.answer(self.given)
        verdict = "Right" if feedback.correct else "Off"
        why = "" if feedback.correct else " " + feedback.message.partition("\n")[0].strip()
        return Outcome(text=f"{found} You predicted {self._reading}. {verdict}.{why}", correct=feedback.correct)
