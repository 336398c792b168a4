"""A quiz and its questions: declarations that never change.

    def shard(rng):
        billions, ranks = rng.choice([3, 7, 13]), rng.choice([4, 8])
        return Numeric(prompt=f"...", expected=billions * 10**9 / ranks, ...)

    register(Quiz(name="zero1", title="Optimizer states", questions=(
        Question(id="who-updates", ask=Choice(prompt="...", options=(Option(...), Option(...)))),
        Question(id="shard", ask=shard),
    )))

A question whose `ask` is a function is drawn anew on each attempt; one whose `ask` is a problem only has its options
shuffled.
"""

import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field

from .choice import Choice
from .feedback import Feedback
from .numeric import Numeric

Problem = Choice | Numeric
_DRAWS = 100  # how often to draw before a question is said to know one problem only


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question. Its `id` is stable: progress is kept under it.

    `ask` is what is asked: one problem for good, or a function that draws one from a random stream.
    """

    id: str
    ask: Problem | Callable[[random.Random], Problem] = field(repr=False)

    def problem(self, attempt: int = 0) -> Problem:
        """What is asked on this attempt, counted from 0; the same attempt always gives the same problem.

        Options are shuffled and numbers drawn anew, so that no two attempts in a row are alike; only a
        `Numeric` in `ask` stays as it is. Raises ValueError where the function in `ask` draws nothing new.
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
    """The questions of one lesson, under the lesson's name. Its repr is its text, which holds no answer."""

    name: str
    title: str
    questions: tuple[Question, ...]

    def __post_init__(self) -> None:
        ids = [question.id for question in self.questions]
        if not ids or len(set(ids)) < len(ids):
            raise ValueError(f"Quiz {self.name!r} has the questions {ids}: it needs some, all different.")

    def text(self) -> str:
        """The whole quiz as plain text, the same every time."""
        parts = [numbered(i, question.problem().text()) for i, question in enumerate(self.questions, start=1)]
        return "\n\n".join([f"Quiz: {self.title}", *parts])

    def __repr__(self) -> str:
        return self.text()


def numbered(number: int, text: str) -> str:
    """`text` as an item of a numbered list, its further lines set in below the first."""
    label = f"{number}. "
    return label + textwrap.indent(text, " " * len(label)).lstrip()
