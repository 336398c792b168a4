"""What the cells of a notebook call: `@exercise("ranks.hello")` and `quiz("ranks")`."""

from __future__ import annotations

from typing import TypeVar

from .. import exercises, quizzes
from ..errors import CourseError
from ..exercises import Exercise, Verdict
from .attempt import Attempt, Hint
from .exercise import ExerciseWidget
from .quiz import QuizWidget, show
from .record import progress

F = TypeVar("F")


class ExerciseCell:
    """An exercise in a notebook. It decorates the learner's function, and has a call for all that its widget does.

        @exercise("ranks.hello")
        def hello(): ...

        exercise("ranks.hello").hint()      # the next hint
        exercise("ranks.hello").verdict     # what the last check found
        exercise("ranks.hello").rerun(3)    # the same solution, on other cases
    """

    def __init__(self, exercise: Exercise) -> None:
        self.exercise = exercise
        self._attempt: Attempt | None = None

    def __call__(self, solution: F) -> F:
        """Check the learner's function, show what came of it, and return it if it passed, else the reference."""
        self._attempt = Attempt(self.exercise, solution, progress())
        ExerciseWidget(self._attempt).check()
        returned: F = self._attempt.returned
        return returned

    @property
    def attempt(self) -> Attempt:
        """The latest attempt in this kernel.

        Raises:
            CourseError: there was none.
        """
        if self._attempt is None:
            raise CourseError(
                f"{self.exercise.name} has not been tried in this kernel, so there is nothing to show. "
                f'Run the cell that begins with @exercise("{self.exercise.name}").'
            )
        return self._attempt

    @property
    def verdict(self) -> Verdict | None:
        """What the latest check found."""
        return self.attempt.verdict

    def hint(self) -> Hint:
        """The next hint."""
        return self.attempt.hint()

    def rerun(self, seed: int) -> Verdict:
        """Check the latest solution on the cases of `seed`."""
        return self.exercise.rerun(seed)

    def __repr__(self) -> str:
        return f"{self.exercise.title}\n{self.exercise.task}" if self._attempt is None else repr(self._attempt)


class ExerciseCells:
    """The exercises that a kernel has met, each once."""

    def __init__(self) -> None:
        self._cells: dict[str, ExerciseCell] = {}

    def get(self, name: str) -> ExerciseCell:
        """The exercise of that name, to decorate a function with.

        Raises:
            CourseError: there is none; the text names those that are near.
        """
        exercise = exercises.get(name)
        return self._cells.setdefault(exercise.name, ExerciseCell(exercise))


exercise = ExerciseCells().get


def quiz(name: str) -> QuizWidget:
    """The quiz of a lesson; as the last line of a cell it is shown.

    Raises:
        CourseError: there is none; the text names those that are near.
    """
    return show(quizzes.get(name), on_answer=_keep)


def _keep(answer: quizzes.Answer) -> None:
    value = {"given": answer.given, "reading": answer.reading}
    progress().answer(answer.quiz, answer.question, answer.attempt, value, answer.correct)
