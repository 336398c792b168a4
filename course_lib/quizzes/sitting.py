"""One learner's way through one quiz: the questions, the answers, and the score."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .feedback import Feedback
from .quiz import Problem, Question, Quiz


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One marked answer in plain data; `dataclasses.asdict` of it can be stored as JSON.

    `given` is the typed text or the picked letters. `reading` is its meaning: the texts of the options, or the number
    and its unit. `attempt` counts from 0 and determines which numbers were shown.
    """

    quiz: str
    question: str
    attempt: int
    given: str
    reading: str
    correct: bool


@dataclass(frozen=True, kw_only=True)
class Score:
    """The number of questions that were answered right at least once."""

    right: int
    questions: int

    @property
    def done(self) -> bool:
        """Return whether every question was right at least once. A later wrong answer takes nothing away."""
        return 0 < self.right == self.questions

    def __str__(self) -> str:
        return f"{self.right} of {self.questions} right"


class Turn:
    """One question as one learner meets it.

    `problem` is the current problem, `given` the last answer to it, and `feedback` the feedback on that answer.
    `answered` and `solved`: whether an answer was marked, and whether one was right, on any attempt.
    """

    def __init__(self, quiz: Quiz, question: Question, on_answer: Callable[[Answer], object] | None) -> None:
        self.question = question
        self.attempt = 0
        self.problem: Problem = question.problem()
        self.given = ""
        self.feedback: Feedback | None = None
        self.answered = self.solved = False
        self._quiz = quiz
        self._on_answer = on_answer

    def answer(self, given: str | float) -> Feedback:
        """Mark an answer, as `Question.answer` does, and pass it to `on_answer` if it could be read."""
        self.given = str(given)
        self.feedback = feedback = self.problem.answer(self.given)
        if feedback.status == "unread":
            return feedback
        self.answered, self.solved = True, self.solved or feedback.correct
        if self._on_answer:
            self._on_answer(
                Answer(
                    quiz=self._quiz.name,
                    question=self.question.id,
                    attempt=self.attempt,
                    given=self.given,
                    reading=feedback.reading,
                    correct=feedback.correct,
                )
            )
        return feedback

    def retry(self) -> Problem:
        """Ask again, with the options in a new order or with new numbers."""
        self.attempt += 1
        self.given, self.feedback = "", None
        self.problem = self.question.problem(self.attempt)
        return self.problem

    def resume(self, answer: Answer) -> None:
        """Continue from an answer of an earlier sitting: mark it again, without calling `on_answer`.

        If an answer would be read or marked differently today, its question has changed, and the answer is left out.
        """
        problem = self.question.problem(answer.attempt)
        feedback = problem.answer(answer.given)
        if (feedback.reading, feedback.correct) == (answer.reading, answer.correct):
            self.attempt, self.problem, self.given, self.feedback = answer.attempt, problem, answer.given, feedback
            self.answered, self.solved = True, self.solved or feedback.correct


class Sitting:
    """A quiz being taken.

        sitting = Sitting(quizzes.get("ranks"))
        print(sitting.turns[0].answer("b"))
        sitting.turns[0].retry()
        print(sitting.score)

    `on_answer` is called with each `Answer` that was marked, so that it can be stored. `answers` are the stored ones,
    oldest first: the sitting continues from there.
    """

    def __init__(
        self, quiz: Quiz, *, on_answer: Callable[[Answer], object] | None = None, answers: Iterable[Answer] = ()
    ) -> None:
        self.quiz = quiz
        self.turns = tuple(Turn(quiz, question, on_answer) for question in quiz.questions)
        turns = {turn.question.id: turn for turn in self.turns}
        for answer in answers:
            if answer.question in turns:
                turns[answer.question].resume(answer)

    @property
    def score(self) -> Score:
        return Score(right=sum(turn.solved for turn in self.turns), questions=len(self.turns))

    @property
    def begun(self) -> bool:
        """Return whether a question has been answered."""
        return any(turn.answered for turn in self.turns)
