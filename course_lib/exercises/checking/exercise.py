"""An exercise: a declaration that can be checked."""

from dataclasses import dataclass, field
from typing import Any

from ...errors import CourseError
from ...world import World
from ..form.declaration import Case, Declaration, Solution
from .check import OnCase, check, nobody_watches
from .findings import Verdict
from .unready import unattempted

__all__ = ["Case", "Exercise", "Solution"]


@dataclass(kw_only=True, eq=False)
class Exercise(Declaration):
    """A function that the learner writes. `Declaration` says what a lesson's file fills in."""

    _latest: Solution | None = field(init=False, default=None)  # checked last, so that it can be checked again

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
        self._latest = solution
        return check(self, solution, world, seed=seed, on_case=on_case)

    def is_stub(self, solution: Any) -> bool:
        """Return whether `solution` is the unchanged stub, or has an empty body."""
        return unattempted(solution, self.stub)

    def rerun(self, seed: int) -> Verdict:
        """Check the latest solution again, on the cases of `seed`, which is in a verdict.

        Raises:
            CourseError: nothing was checked yet.
        """
        if self._latest is None:
            raise CourseError(
                f"{self.name}: nothing to run again, because no solution has been checked in this kernel. "
                "Run the cell of the exercise first."
            )
        return self.check(self._latest, seed=seed)
