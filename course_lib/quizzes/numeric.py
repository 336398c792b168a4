"""Questions whose answer is a number, with feedback for wrong numbers that reveal a known mistake."""

from dataclasses import dataclass, field, replace
from fractions import Fraction

from .feedback import Feedback
from .quantities import Unreadable, factor, mistaken_byte_unit, read


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """A question for a number, with or without its unit.

    `expected` is computed, never typed in, and is in the base unit: bytes if `unit` is one of memory ("GB", "GiB"), a
    share of one if it is "%", and a count for any other unit. `tolerance` is relative; 0 asks for the exact number.
    `right` and `wrong` are the feedback. `mistakes` are wrong values, in the base unit, each with the feedback that
    replaces `wrong` within the same tolerance of it. Raises ValueError for a mistake that would be accepted.
    """

    prompt: str
    expected: float | Fraction = field(repr=False)
    right: str = field(repr=False)
    wrong: str = field(repr=False)
    unit: str = ""
    tolerance: float = 0.01
    mistakes: tuple[tuple[float | Fraction, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.tolerance == 0 and isinstance(self.expected, float):
            raise ValueError(f"{self.prompt!r} wants {self.expected} exactly. Compute an int or a Fraction.")
        for value, feedback in self.mistakes:
            if self._accepts(Fraction(value)):
                raise ValueError(f"{self.prompt!r} accepts {value}, the mistake {feedback!r}. Draw other numbers.")

    @property
    def instruction(self) -> str:
        """The unit of the answer, and its required accuracy."""
        how = f"within {100 * self.tolerance:g} % of the exact value" if self.tolerance else "exactly"
        return f"Answer in {self.unit}, {how}." if self.unit else f"Answer with a number, {how}."

    @property
    def solution(self) -> str:
        """A right answer, such as "38.5 GB"."""
        number = Fraction(self.expected) / factor(self.unit)
        return f"{number if self.tolerance == 0 else format(float(number), '.12g')} {self.unit}".strip()

    def text(self) -> str:
        return f"{self.prompt}\n{self.instruction}"

    def answer(self, given: str) -> Feedback:
        """Mark a number as a person writes it: "38.5 GB", "7B", "2e9", "1/4", "87.5 %"."""
        try:
            reading = read(given, self.unit)
        except Unreadable as problem:
            return Feedback(status="unread", message=str(problem))
        correct = self._accepts(reading.value)
        message = self.right if correct else self._explain(reading.value)
        return Feedback(
            status="right" if correct else "wrong",
            message=f"{message}\nYour answer was read as {reading.text}.",
            reading=reading.text,
        )

    def _accepts(self, value: Fraction) -> bool:
        return self._near(value, self.expected)

    def _near(self, value: Fraction, other: float | Fraction) -> bool:
        return abs(value - Fraction(other)) <= Fraction(self.tolerance) * abs(Fraction(other))

    def _explain(self, value: Fraction) -> str:
        """Return the likeliest reason for a wrong `value`."""
        for mistake, feedback in self.mistakes:
            if self._near(value, mistake):
                return feedback
        other = mistaken_byte_unit(self.unit)
        # A GiB is 7 % more than a GB, so a guess that is only near tells nothing of its unit.
        exact = replace(self, tolerance=min(self.tolerance, 0.01), mistakes=())
        if other and exact._accepts(value * factor(other) / factor(self.unit)):
            return f"That is the number in {other}. The question asks for {self.unit}."
        for power in (3, 6, 9, 12):
            for times, what in ((Fraction(10) ** -power, "many"), (Fraction(10) ** power, "few")):
                if self._accepts(value * times):
                    return f"The digits are right, but 10^{power} times too {what}: look at the unit."
        return f"Too {'high' if value > self.expected else 'low'}. {self.wrong}"
