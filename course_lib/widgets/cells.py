"""Functions that a cell calls for an exercise: `@exercise("ranks.hello")`, and `exercise("ranks.hello").hint()`."""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from IPython.core.getipython import get_ipython

from .. import exercises
from ..errors import CourseError
from ..exercises import Exercise, Verdict
from ..exercises.registry import REMOVED
from ..progress import Attempt as StoredAttempt
from ..progress import own_progress
from .attempt import Attempt, Hint
from .exercise_widget import ExerciseWidget

F = TypeVar("F")

MODULES = ("sympy", "torch.distributed.fsdp", "torch._dynamo", "torch.distributed.optim")
"""The modules that torch imports at the first optimizer step and sharded module: over a second of CPU time."""
PAUSE_SECONDS = 0.5


def load_later(modules: Sequence[str] = MODULES) -> None:
    """Load `modules` one by one when the kernel waits for a cell, so that the first check need not. Elsewhere, do not.

    A thread cannot do it: a cell that imports the same modules meanwhile would find them half loaded.
    """

    def load() -> None:
        with suppress(ImportError):  # a different release of torch
            importlib.import_module(modules[0])
        load_later(modules[1:])

    with suppress(RuntimeError):  # no loop runs here
        if modules:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, load)


class ExerciseCell:
    """An exercise in a notebook. It decorates the learner's function, and has a method for each action of its widget.

    @exercise("ranks.hello")
    def hello(): ...

    exercise("ranks.hello").hint()      # the next hint
    exercise("ranks.hello").next_step() # what to do about the findings of the last check
    exercise("ranks.hello").verdict     # the verdict of the last check
    exercise("ranks.hello").insert()    # put the last attempt that is stored into this cell
    exercise("ranks.hello").answer(globals())    # the function that passed, in another lesson
    """

    def __init__(self, exercise: Exercise) -> None:
        self.exercise = exercise
        self._attempt: Attempt | None = None

    def __call__(self, solution: F) -> F:
        """Check the learner's function and show the result. Return the function if it passed, else the reference."""
        self._attempt = Attempt(self.exercise, solution, own_progress())
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

    def next_step(self) -> Hint:
        """Return the next step for each finding of the latest check."""
        return self.attempt.next_step()

    @property
    def stored(self) -> StoredAttempt:
        """The last attempt that is stored, in this kernel or long ago, with its `source`.

        Raises:
            CourseError: there is none.
        """
        last = own_progress().last_attempt(self.exercise.name)
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

    def answer(self, namespace: dict[str, Any]) -> Any:
        """Return the learner's function from an earlier lesson if it still passes, or the reference. Print which.

        Args:
            namespace: the names that its cell used from other cells: `globals()`.
        """
        name, last = self.exercise.stub.__name__, own_progress().last_attempt(self.exercise.name)
        if last is None or last.status != "passed":
            reason = "none of yours has passed"
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

    def __repr__(self) -> str:
        return f"{self.exercise.title}\n{self.exercise.task}" if self._attempt is None else repr(self._attempt)


def exercise(name: str) -> ExerciseCell:
    """Return the exercise of that name, to decorate a function with.

    If version 2.0 had the exercise and no lesson has it any more, return a decorator that leaves the function as it
    is, so that a copy of the lesson runs to its end.

    Raises:
        CourseError: there is none; the message lists similar names.
    """
    return cast(ExerciseCell, _unchecked(name)) if name in REMOVED else _cell(exercises.get(name))


def _unchecked(name: str) -> Callable[[F], F]:
    def keep(solution: F) -> F:
        print(f"The exercise {name!r} was removed from the course. Your function is defined, and not checked.")
        return solution

    return keep


_cell = functools.cache(ExerciseCell)  # one for the names of version 2.0 and of today
