"""The shape of an exercise, which a lesson's file fills with data.

A lesson file declares functions to write, right solutions, known wrong ones, and the sentences about them. It ends with
`EXERCISES`, a tuple of exercises, and is listed in `registry.LESSONS`.

    Case         one draw of a check: the number of ranks, and the arguments on each of them
    Exercise     a function that the learner writes, with everything that is known about it
    Mistake      a wrong solution that learners hand in, runnable, with the sentence that helps
"""

from __future__ import annotations

import inspect
import random
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import CourseError
from ..world import World
from .checking.check import OnCase, check, nobody_watches
from .checking.findings import Verdict
from .checking.observe import Observation
from .checking.rules import Rule
from .checking.unready import unattempted

Solution = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One draw of a check.

    Attributes:
        world_size: number of ranks; 0 for a solution that needs no world and is called once.
        args: returns, for a rank, the positional arguments of the solution there. It makes new, equal arguments on
            every call, because a run may change them. It is called on the rank itself.
        about: the case in a few words, for the learner ("3 ranks, 10 elements").
        drawn: the seed and the number that it was drawn from; set by the check.
    """

    world_size: int
    args: Callable[[int], tuple[Any, ...]]
    about: str
    drawn: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A known wrong solution.

    Attributes:
        id: short and kebab-case, unique in its exercise: `sum-for-mean`.
        solution: code that makes the mistake. The check runs it like the learner's solution: if both behave the same,
            the learner made this mistake. So it must behave the same on every run (no uninitialised memory), and end
            (no endless loop).
        told: the message for the learner: what the code does, and why the task asks for something else.
        action: one next step.
    """

    id: str
    solution: Solution
    told: str
    action: str


@dataclass(kw_only=True)
class Remembered:
    """The state that an exercise keeps from check to check.

    Attributes:
        latest: the solution that was checked last, so that it can be checked again.
        observed: the behaviour of the reference and the known mistakes, by solution and by the draw of the case. It is
            the same each time, so one run is enough. It is dropped after checks of other exercises: see `recall`.
    """

    latest: Solution | None = None
    observed: dict[tuple[Solution, tuple[int, int]], Observation] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A function that the learner writes.

    Attributes:
        name: lesson and task, `ranks.hello`.
        title: a heading of a few words.
        task: what to write, in Markdown.
        stub: the start of the notebook's cell, under the name of the learner's function; its body raises
            `NotImplementedError`. The cell contains its source: see `cell`.
        reference: a right solution, written to be read: the learner sees its source as the last hint.
        draw: makes a `Case` from a random stream and the number of the draw (0, 1, 2, ...). Draw 0 is the smallest
            meaningful case, because a learner sees it first.
        mistakes: at least six.
        variants: right solutions written differently; tests only.
        hints: from a question to nearly the code: question, concept, name of the function, nearly the code.
        explanation: why the reference is right, in Markdown; shown with the solution, and after a pass.
        rules: requirements besides equal results, such as `only_calls("send", "recv")`.
        trial: `trial(solution, *args)` runs a solution on one rank and returns the value to compare; by default the
            value that `solution(*args)` returns. The value is plain: None, bools, numbers, strings, tensors, and lists,
            tuples and dicts of them.
        measured: whether the memory of each rank is measured, for rules that use it. A `trial` may `mark` moments.
        inputs_matter: whether the arguments must end up as the reference leaves them: untouched, or changed in place.
            False if a solution may use them as scratch space.
        tolerance: relative, for floating-point results.
        case_count: the number of cases that a check tries.
    """

    name: str
    title: str
    task: str
    stub: Solution
    reference: Solution
    draw: Callable[[random.Random, int], Case]
    mistakes: Sequence[Mistake]
    hints: Sequence[str]
    explanation: str
    variants: Mapping[str, Solution] = field(default_factory=dict)
    rules: Sequence[Rule] = ()
    trial: Callable[..., Any] | None = None
    measured: bool = False
    inputs_matter: bool = True
    tolerance: float = 1e-5
    case_count: int = 6
    remembered: Remembered = field(default_factory=Remembered, init=False, repr=False, compare=False)

    def check(
        self, solution: Any, world: World | None = None, *, seed: int = 0, on_case: OnCase = nobody_watches
    ) -> Verdict:
        """Try `solution` on cases drawn from `seed`, and report what is wrong with the first that fails.

        Args:
            solution: the learner's function. It and everything that it uses are copied, and stay unchanged.
            world: where to run, instead of on simulated ranks; then only cases of its size are tried.
            seed: the same seed draws the same cases.
            on_case: called with the number of cases done and the number to do.
        """
        self.remembered.latest = solution
        return check(self, solution, world, seed=seed, on_case=on_case)

    def is_stub(self, solution: Any) -> bool:
        """Return whether `solution` is the unchanged stub, or has an empty body."""
        return unattempted(solution, self.stub)

    def rerun(self, seed: int) -> Verdict:
        """Check the latest solution again, on the cases of `seed`, which is in a verdict.

        Raises:
            CourseError: nothing was checked yet.
        """
        if self.remembered.latest is None:
            raise CourseError(
                f"{self.name}: nothing to run again, because no solution has been checked in this kernel. "
                "Run the cell of the exercise first."
            )
        return self.check(self.remembered.latest, seed=seed)

    @property
    def cell(self) -> str:
        """The text of the notebook's cell."""
        return f'@exercise("{self.name}")\n{_source(self.stub)}'

    @property
    def solution(self) -> str:
        """The reference's source, under the name of the learner's function."""
        source = _source(self.reference)
        return source.replace(f"def {self.reference.__name__}(", f"def {self.stub.__name__}(")


def _source(function: Solution) -> str:
    return textwrap.dedent(inspect.getsource(function)).strip()
