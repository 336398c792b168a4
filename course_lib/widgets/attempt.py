"""One attempt at an exercise: the check, its result, and the hints. The logic behind the widget, without the widget."""

import inspect
import linecache
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ..errors import CourseError
from ..exercises import Exercise, Verdict
from ..exercises.checking.findings import Cost
from ..planner import count
from ..progress import Attempt as StoredAttempt
from ..progress import CourseMap, Progress
from ..syllabus import lessons

OUTCOMES = {
    "passed": "passed",
    "failed": "was not right yet",
    "error": "ended in an error",
    None: "did not end",
}


class Hint(str):
    """Markdown text, which a notebook shows as Markdown."""

    def _repr_markdown_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return str(self)


class Attempt:
    """A solution that was handed in.

    Args:
        exercise: the exercise.
        solution: the learner's function.
        progress: the record that stores the attempt. Its `notice` is a problem with it.

    Attributes:
        verdict: the result of the check; None before it has ended.
        earlier: the attempt before this one, in this kernel or long ago; None if there was none.
        step_taken: whether the next steps of this verdict were asked for.
        standing: after a pass: how far the lesson is, what is next in it, and a pass of yours that took less.
        hints: the hints taken so far, on this attempt or an earlier one, first to last.
        returned: the value that the function's name gets in later cells: the solution once it has passed, and the
            reference until then.
    """

    def __init__(self, exercise: Exercise, solution: Any, progress: Progress) -> None:
        self.exercise, self.solution = exercise, solution
        self.verdict: Verdict | None = None
        self.step_taken = False
        self.standing = ""
        self.progress = progress
        self.earlier: StoredAttempt | None = progress.last_attempt(exercise.name)
        self._taken = min(len(progress.hints(exercise.name)), len(self.ladder))  # an earlier version may have had more

    def check(self, on_case: Callable[[int, int], object]) -> Verdict:
        """Check the solution. Its source is stored before anything runs; an unchanged cell runs nothing."""
        stored: StoredAttempt | None = None

        def store_first(done: int, to_do: int) -> None:
            nonlocal stored
            stored = stored or self.progress.begin_attempt(self.exercise.name, _source(self.solution))
            on_case(done, to_do)

        self.verdict = verdict = self.exercise.check(self.solution, on_case=store_first)
        if stored is not None:
            found = asdict(verdict.cost) if verdict.cost else [asdict(finding) for finding in verdict.findings]
            self.progress.finish_attempt(stored, verdict.status, found)
            self.standing = "\n".join(self._standing(verdict.cost)) if verdict.cost else ""
        return verdict

    @property
    def returned(self) -> Any:
        return self.solution if self.passed else self.exercise.reference

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.status == "passed"

    # -- hints -----------------------------------------------------------------------------------------------------

    @property
    def ladder(self) -> tuple[str, ...]:
        """All hints, as Markdown; the last is the solution."""
        solution = f"```python\n{self.exercise.solution}\n```\n\n{self.exercise.explanation}"
        return (*self.exercise.hints, solution)

    @property
    def hints(self) -> tuple[str, ...]:
        return self.ladder[: self._taken]

    @property
    def hints_open(self) -> int:
        """The number of hints that can be taken: one immediately, all of them after an attempt, however long ago."""
        untried = self.earlier is None and (self.verdict is None or self.verdict.status == "unattempted")
        return max(1, self._taken) if untried else len(self.ladder)

    def hint(self) -> Hint:
        """Return the next hint, or what to do to get it; after the last, the last again."""
        if self._taken < self.hints_open:
            self._taken += 1
            self.progress.hint_taken(self.exercise.name, self._taken)
        elif self._taken < len(self.ladder):
            return Hint("The next hint opens when you have tried something: write a line or two, and run the cell.")
        return Hint(self.ladder[self._taken - 1])

    def next_step(self) -> Hint:
        """Return the next step for each finding. If one is a hint, it counts as one."""
        if self.verdict is None or not self.verdict.findings:
            return Hint("The latest check found nothing wrong, so there is no next step.")
        if self.verdict.has_hints and not self.step_taken:
            self.step_taken = True
            self.progress.step_taken(self.exercise.name)
        return Hint(self.verdict.next_step)

    # -- text ------------------------------------------------------------------------------------------------------

    def _standing(self, cost: Cost) -> Iterator[str]:
        name, own = self.exercise.name, []
        with suppress(CourseError):  # a learner may work in the course's own notebooks, and have damaged one
            own = [lesson for lesson in lessons() if name in lesson.exercises]
        summary = self.progress.summary()
        for stop in CourseMap(own, summary).stops:
            names, after = stop.lesson.exercises, f"next: {stop.next.title}" if stop.next else "the lesson is done"
            passed = sum(one in summary.exercises and summary.exercises[one].passed for one in names)
            yield f"{passed} of {count(len(names), 'exercise')} · {after}"
        best = self.progress.best(name)
        if best and best < (cost.sent_bytes, cost.calls):
            yield f"Your best so far: {best[1]:,} calls, {best[0]:,} bytes sent."

    @property
    def consequence(self) -> str:
        """The function that later cells use, in a sentence."""
        name, given = self.exercise.stub.__name__, getattr(self.solution, "__name__", "")
        if self.passed and given not in ("", name):
            return f"Yours is called `{given}`. Later cells use `{name}`: call it that, and run the cell again."
        if self.passed:
            return f"Later cells use your `{name}`."
        tried = self.progress.summary().exercises.get(self.exercise.name)
        if tried is not None and tried.passed:
            return f"You passed before, and that counts. With this version, later cells use the course's own `{name}`."
        return f"Until yours passes, later cells use the course's own `{name}`."

    @property
    def reminder(self) -> str:
        """The outcome of the earlier attempt, if the cell is unchanged; empty if not."""
        if self.earlier is None or self.verdict is None or self.verdict.status != "unattempted":
            return ""
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.earlier.started_ns / 1e9))
        insert = f'`exercise("{self.exercise.name}").insert()`'
        outcome = OUTCOMES[self.earlier.status]
        return f"Your last attempt, of {day}, {outcome}. {insert} puts it into the cell that calls it."

    def __repr__(self) -> str:
        """Return what the widget shows, without hints and explanation: a saved notebook contains no solution."""
        if self.verdict is None:
            return f"{self.exercise.name}: not checked yet"
        verdict = self.verdict.text(hints=self.step_taken, ask=f'exercise("{self.exercise.name}").next_step()')
        return "\n".join(filter(None, [verdict, self.standing, self.reminder, self.consequence, self.progress.notice]))


def _source(solution: Any) -> str:
    """Return the text of the cell, with helpers; of a file, only the function's; empty if Python finds neither."""
    try:
        file = inspect.getsourcefile(solution) or ""
        in_a_file = os.path.exists(file)
        return inspect.getsource(solution) if in_a_file else "".join(linecache.getlines(file)).rstrip("\n")
    except (OSError, TypeError):
        return ""
