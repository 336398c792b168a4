"""One learner's way through one quiz: what was asked, what was answered, and the score."""

from collections.abc import Callable
from dataclasses import dataclass

from .feedback import Feedback
from .quiz import Problem, Question, Quiz, numbered


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One marked answer in plain data; `dataclasses.asdict` of it can be stored as JSON.

    `given` is what was typed or which letters were picked, and `reading` is what it meant: the texts of the
    options, or the number and its unit. `attempt` counts from 0 and tells which numbers were on show.
    """

    quiz: str
    question: str
    attempt: int
    given: str
    reading: str
    correct: bool


@dataclass(frozen=True, kw_only=True)
class Score:
    """How many questions were answered right at least once."""

    right: int
    questions: int

    def __str__(self) -> str:
        return f"{self.right} of {self.questions} right"


class Turn:
    """One question as one learner meets it: `problem` is what is asked now, `feedback` what was last said."""

    def __init__(self, quiz: Quiz, question: Question, on_answer: Callable[[Answer], object] | None) -> None:
        self.question = question
        self.attempt = 0
        self.problem: Problem = question.problem()
        self.feedback: Feedback | None = None
        self.solved = False
        self._quiz = quiz
        self._on_answer = on_answer

    def answer(self, given: str | float) -> Feedback:
        """Mark an answer, as `Question.answer` does, and hand it to `on_answer` if it could be read."""
        self.feedback = feedback = self.problem.answer(str(given))
        self.solved = self.solved or feedback.correct
        if self._on_answer and feedback.status != "unread":
            self._on_answer(
                Answer(
                    quiz=self._quiz.name,
                    question=self.question.id,
                    attempt=self.attempt,
                    given=str(given),
                    reading=feedback.reading,
                    correct=feedback.correct,
                )
            )
        return feedback

    def retry(self) -> Problem:
        """Ask again, with the options in another order or with other numbers."""
        self.attempt += 1
        self.feedback = None
        self.problem = self.question.problem(self.attempt)
        return self.problem

    def text(self) -> str:
        return self.problem.text() + (f"\n{self.feedback}" if self.feedback else "")


class Sitting:
    """A quiz being taken.

        sitting = Sitting(quizzes.get("ranks"))
        print(sitting.text())
        print(sitting.turns[0].answer("b"))
        sitting.turns[0].retry()
        print(sitting.score)

    `on_answer` is called with each `Answer` that was marked, for whoever keeps them.
    """

    def __init__(self, quiz: Quiz, *, on_answer: Callable[[Answer], object] | None = None) -> None:
        self.quiz = quiz
        self.turns = tuple(Turn(quiz, question, on_answer) for question in quiz.questions)

    @property
    def score(self) -> Score:
        return Score(right=sum(turn.solved for turn in self.turns), questions=len(self.turns))

    def text(self) -> str:
        """What is asked now and what was last said, question by question, and the score."""
        parts = [numbered(i, turn.text()) for i, turn in enumerate(self.turns, start=1)]
        return "\n\n".join([f"Quiz: {self.quiz.title}", *parts, f"{self.score}."])
