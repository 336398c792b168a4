"""The functions that notebook cells call: `@exercise("ranks.hello")`, `predict("ranks.sum", ...)`, `quiz("ranks")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from IPython.core.getipython import get_ipython

from .. import exercises, quizzes
from ..errors import CourseError
from ..exercises import Exercise, Verdict
from ..progress import Attempt as StoredAttempt
from ..progress import CourseMap, lessons
from ..world import Run
from .attempt import Attempt, Hint
from .exercise_widget import ExerciseWidget
from .guess import Guess
from .map import ShownMap
from .prediction import PredictionCell
from .quiz_widget import QuizWidget
from .record import progress, review
from .scores import Scoreboard, measures
from .world_picker import WorldPicker

F = TypeVar("F")


class ExerciseCell:
    """An exercise in a notebook. It decorates the learner's function, and has a method for each action of its widget.

    @exercise("ranks.hello")
    def hello(): ...

    exercise("ranks.hello").hint()      # the next hint
    exercise("ranks.hello").verdict     # the verdict of the last check
    exercise("ranks.hello").rerun(3)    # the same solution, on other cases
    exercise("ranks.hello").insert()    # put the last attempt that is stored into this cell
    exercise("ranks.hello").answer(globals())    # the function that passed, in another lesson
    """

    def __init__(self, exercise: Exercise) -> None:
        self.exercise = exercise
        self._attempt: Attempt | None = None

    def __call__(self, solution: F) -> F:
        """Check the learner's function and show the result. Return the function if it passed, else the reference."""
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
        """The verdict of the latest check."""
        return self.attempt.verdict

    def hint(self) -> Hint:
        """Return the next hint."""
        return self.attempt.hint()

    @property
    def stored(self) -> StoredAttempt:
        """The last attempt that is stored, in this kernel or long ago, with its `source`.

        Raises:
            CourseError: there is none.
        """
        last = progress().last_attempt(self.exercise.name)
        if last is None:
            raise CourseError(
                f"{self.exercise.name}: no attempt is stored. A cell that you have not changed is not an attempt. "
                "Write a line or two, and run the cell."
            )
        return last

    def insert(self) -> None:
        """Put the source of the last attempt into the cell that calls this; print it outside a notebook.

        Raises:
            CourseError: no attempt is stored.
        """
        source, shell = self.stored.source, get_ipython()
        if shell is None:
            print(source)
            return
        shell.set_next_input(source, replace=True)
        name = self.exercise.name
        print(f'This cell is now your last attempt. If it is not, try print(exercise("{name}").stored.source)')

    def answer(self, namespace: dict[str, Any], *, imported: bool = False) -> Any:
        """Return the learner's function from an earlier lesson if it still passes, or the reference. Print which.

        Args:
            namespace: the names that its cell used from other cells: `globals()`.
            imported: whether to run it even if `course progress --import` added it, so that somebody else may have
                written it.
        """
        name, last = self.exercise.stub.__name__, progress().last_attempt(self.exercise.name)
        if last is None or last.status != "passed":
            reason = "none of yours has passed"
        elif last.imported and not imported:
            reason = (
                "yours was imported, and does not run unasked. "
                f'Read it: print(exercise("{self.exercise.name}").stored.source). '
                "If it is what you wrote: .answer(globals(), imported=True)"
            )
        else:
            try:
                yours = self._made_by(last.source, namespace)
            except Exception as error:  # it may use names of its own notebook
                reason = f"yours does not run here: {type(error).__name__}: {error}"
            else:
                if self.exercise.check(yours).status == "passed":
                    print(f"{name}: yours")
                    return yours
                reason = "yours does not pass here"
        print(f"{name}: the course's own; {reason}")
        return self.exercise.reference

    def _made_by(self, source: str, namespace: dict[str, Any]) -> Any:
        """Return the function that `source` hands in, whatever its name is. Nothing is checked or stored again."""
        name = self.exercise.stub.__name__
        handed_in: dict[str, Any] = {}
        scope = namespace | {"exercise": lambda exercise: lambda solution: handed_in.setdefault(exercise, solution)}
        exec(compile(source, f"your {name}", "exec"), scope)
        return handed_in.get(self.exercise.name, scope.get(name))

    def rerun(self, seed: int) -> Verdict:
        """Check the latest solution on the cases of `seed`."""
        return self.exercise.rerun(seed)

    def __repr__(self) -> str:
        return f"{self.exercise.title}\n{self.exercise.task}" if self._attempt is None else repr(self._attempt)


class ExerciseCells:
    """The exercises that a kernel has used, each once."""

    def __init__(self) -> None:
        self._cells: dict[str, ExerciseCell] = {}

    def get(self, name: str) -> ExerciseCell:
        """Return the exercise of that name, to decorate a function with.

        Raises:
            CourseError: there is none; the message lists similar names.
        """
        exercise = exercises.get(name)
        return self._cells.setdefault(exercise.name, ExerciseCell(exercise))


exercise = ExerciseCells().get


def choose_world(name: str | None = None) -> None:
    """Choose where the ranks of this notebook live. Without a name, show buttons for the choice.

    Args:
        name: "simulated", "processes", "nccl", or "nccl:4" for four GPUs.

    Raises:
        CourseError: there is no such world, or this machine has no GPU for it.
    """
    picker = WorldPicker()
    if name is not None:
        picker.choose(name)
    picker.show()


def course_map() -> ShownMap:
    """Return the map of all lessons, with what is done and what to do next. As the last line of a cell it is shown.

    Raises:
        CourseError: a notebook of the course cannot be read.
    """
    done = progress()
    return ShownMap(CourseMap(lessons(), done.summary()), done.notice)


def predict(
    name: str, question: str, *, unit: str = "", tolerance: float = 0.1, choices: Sequence[str] = ()
) -> PredictionCell:
    """Show a field for a prediction, before the cell runs that shows the result; see `PredictionCell`.

    Args:
        name: the key under which the prediction is stored: lesson and subject, `start.sum`.
        question: what to predict, in Markdown. The answer is one number, or one of the choices.
        unit: "MB", "GiB", "%", "ranks", or nothing.
        tolerance: the error that is still right, relative to the measured value; 0 asks for the exact number.
        choices: the possible answers, in Markdown: `predict(..., choices=["It grows", "It stays"])`.
    """
    guess = Guess(name, question, progress(), unit=unit, tolerance=tolerance, choices=choices)
    cell = PredictionCell(guess)
    cell.show()
    return cell


def scoreboard(name: str | None = None, run: Run | None = None) -> Scoreboard:
    """Return the scoreboard: what each of your stages holds, sends and takes. As the last line of a cell it is shown.

    Args:
        name: the name of a row: "data parallel", "ZeRO-1". The same name replaces the row.
        run: the run that the row is about: `scoreboard("ZeRO-1", run)`.

    Raises:
        CourseError: one of the two is missing, or the run was not measured.
    """
    if (name is None) != (run is None):
        raise CourseError('scoreboard() takes both a name and a run, or neither: scoreboard("ZeRO-1", run).')
    if name is not None and run is not None:
        progress().add_score(name, measures(run))
    return Scoreboard(progress().scores(), progress().notice)


def quiz(name: str) -> QuizWidget:
    """Return the quiz of a lesson. As the last line of a cell it is shown.

    Raises:
        CourseError: there is none; the message lists similar names.
    """
    return QuizWidget(quizzes.get(name), progress(), earlier=review(name))
