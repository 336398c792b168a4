"""A prediction: committed before the cell runs, locked, and scored against the measured value. No widget."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsFloat

from ..errors import CourseError
from ..progress import Progress
from ..quizzes import Numeric, Unreadable, read, write

RESULT = "Result:"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A measured value compared with the prediction. `correct` is None if nothing was predicted."""

    text: str
    correct: bool | None = None

    def __repr__(self) -> str:
        return self.text


class Guess:
    """One prediction, which `progress` stores. `prediction.predict` and its widget document arguments and errors."""

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
        self.name, self.question, self.unit, self.tolerance = name, question, unit, tolerance
        self.choices = tuple(choices)
        self._progress = progress
        stored = progress.prediction(name)
        self.given: str | None = stored.value if stored else None
        self.outcome: Outcome | None = None
        if stored and stored.measured is not None:
            self.outcome = self._outcome(Fraction(stored.measured))

    def commit(self, given: str | float) -> None:
        """Predict: "38.5 GB", "7B", "2e9", "1/4", a number in the unit of the question, or one of the choices."""
        if self.given is None and self.outcome is not None:
            raise CourseError(
                f"{self.name} has been measured already, and {given} would no longer be a prediction. Run the cell "
                "with the question again to be asked anew."
            )
        if not self.choices:
            read(str(given), self.unit)
        elif given not in self.choices:
            raise Unreadable(f"Choose one of: {'; '.join(self.choices)}.")
        self.given = str(self._progress.predict(self.name, str(given)).value)

    def reveal(self, measured: SupportsFloat | str) -> Outcome:
        """Score the prediction against the measured value, or the right choice."""
        value = self._number_of(measured)
        self.outcome = self._outcome(value)
        if self.outcome.correct is not None:
            self._progress.score(self.name, str(value), self.outcome.correct)
        return self.outcome

    def _number_of(self, measured: SupportsFloat | str) -> Fraction:
        """Return what is stored: the number, or the position of the right choice."""
        if self.choices:
            if measured not in self.choices:
                raise CourseError(
                    f"{self.name}: {measured!r} is none of its choices. Give reveal() one of {list(self.choices)}."
                )
            return Fraction(self.choices.index(str(measured)))
        try:
            return Fraction(measured if isinstance(measured, int | Fraction) else float(measured))
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise CourseError(
                f"{self.name}: a prediction is scored against one number, and this is {type(measured).__name__} "
                f"({error}). Give reveal() one number, such as run.memory[0].peak_bytes."
            ) from None

    @property
    def title(self) -> str:
        return f"Predict: {self.question}"

    @property
    def standing(self) -> str:
        """A sentence with the prediction, if there is one."""
        if self.given is None:
            return ""
        return f"You predicted {self._reading}. Run the next cell to see."

    @property
    def instruction(self) -> str:
        """The form of the answer: its unit and its required accuracy."""
        if self.choices:
            return "Choose one."
        unit = f"Answer in {self.unit}" if self.unit else "Answer with a number"
        near = f"; {100 * self.tolerance:g} % off is close enough." if self.tolerance else ", exactly."
        return unit + near

    @property
    def notice(self) -> str:
        """A problem with the learner's record; empty while all is well."""
        return self._progress.notice

    def text(self) -> str:
        """Return everything as plain text."""
        choices = [f"- {choice}" for choice in self.choices]
        lines = [self.title, *choices, self.instruction, str(self.outcome or self.standing)]
        return "\n".join(filter(None, [*lines, self.notice]))

    @property
    def _reading(self) -> str:
        try:
            return f"“{self.given}”" if self.choices else read(self.given or "", self.unit).text
        except Unreadable:  # the question's unit has changed since, or the prediction was imported
            return self.given or ""

    def _outcome(self, measured: Fraction) -> Outcome:
        """Return the outcome; `measured` is what `_number_of` returned, now or in an earlier kernel."""
        if self.choices:
            right = self.choices[int(measured) % len(self.choices)]  # the choices may have changed since
            correct, found, why = self.given == right, f"{RESULT} “{right}”.", ""
        else:
            problem = Numeric(
                prompt=self.question, expected=measured, unit=self.unit, tolerance=self.tolerance, right="", wrong=""
            )
            feedback = problem.answer(self.given or "")
            correct, found = feedback.correct, f"{RESULT} {write(measured, self.unit, rounded=self.tolerance > 0)}."
            said = feedback.message.partition("\n")[0].strip()
            why = "" if correct else f" {said}"
        if self.given is None:
            return Outcome(text=found)
        predicted = f"You predicted {self._reading}."
        score = "Right." if correct else "Off."
        return Outcome(text=f"{found} {predicted} {score}{why}", correct=correct)
