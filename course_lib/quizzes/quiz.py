"""A quiz and its questions: declarations that never change.

    def shard(rng):
        billions, ranks = rng.choice([3, 7, 13]), rng.choice([4, 8])
        return Numeric(prompt=f"...", expected=billions * 10**9 / ranks, ...)

    QUIZ = Quiz(name="zero1", title="Optimizer states", questions=(
        Question(id="who-updates", ask=Choice.read("...")),
        Question(id="shard", ask=shard),
    ))

If `ask` is a function, it draws a new problem on each attempt; if it is a problem, only its options are shuffled.
"""

import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field

from .choice import Choice
from .feedback import Feedback
from .numeric import Numeric

Problem = Choice | Numeric
_DRAWS = 100  # draws before a question counts as having only one problem


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question. Its `id` is stable: progress is stored under it.

    `ask` is one fixed problem, or a function that draws one from a random stream.
    """

    id: str
    ask: Problem | Callable[[random.Random], Problem] = field(repr=False)

    def problem(self, attempt: int = 0) -> Problem:
        """Return the problem of this attempt, counted from 0; the same attempt always gives the same problem.

        Options are shuffled and numbers drawn again, so that two attempts in a row differ; only a `Numeric` in `ask`
        stays the same. Raises ValueError if the function in `ask` draws nothing new.
        """
        rng = random.Random(self.id)
        problem = self._draw(rng)
        for _ in range(attempt):
            problem = self._draw_other(problem, rng)
        return problem

    def answer(self, given: str | float, attempt: int = 0) -> Feedback:
        """Mark an answer: letters for options ("b", "a, c"), a number for a numeric question ("38.5 GB")."""
        return self.problem(attempt).answer(str(given))

    def _draw(self, rng: random.Random) -> Problem:
        problem = self.ask(rng) if callable(self.ask) else self.ask
        return problem.shuffled(rng) if isinstance(problem, Choice) else problem

    def _draw_other(self, previous: Problem, rng: random.Random) -> Problem:
        if isinstance(self.ask, Numeric):
            return self.ask
        for _ in range(_DRAWS):
            problem = self._draw(rng)
            if problem != previous:
                return problem
        raise ValueError(f"Question {self.id!r} drew the same {_DRAWS} times. Let it draw from more values.")


@dataclass(frozen=True, kw_only=True, repr=False)
class Quiz:
    """The questions of one lesson, under the lesson's name. Its repr is its text, which contains no answer."""

    name: str
    title: str
    questions: tuple[Question, ...]

    def __post_init__(self) -> None:
        ids = [question.id for question in self.questions]
        if not ids or len(set(ids)) < len(ids):
            raise ValueError(f"Quiz {self.name!r} has the questions {ids}: it needs some, all different.")

    def __repr__(self) -> str:
        """Return the whole quiz as plain text, the same every time."""
        parts = [f"Quiz: {self.title}"]
        for number, question in enumerate(self.questions, start=1):
            label = f"{number}. "
            parts.append(label + textwrap.indent(question.problem().text(), " " * len(label)).lstrip())
        return "\n\n".join(parts)
