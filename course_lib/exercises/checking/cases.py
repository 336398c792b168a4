"""The cases of a check, which a solution must pass, and its runs on them.

And draws that exercises share, for their cases: world sizes, and tensors from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ...errors import CourseError
from ...world import World
from ..form.declaration import Case, Declaration, Solution
from .observe import Observation, Trial, observe, recall

DTYPES = (torch.float32, torch.int64, torch.float64)


def draw(exercise: Declaration, seed: int, world: World | None = None) -> list[Case]:
    """Return the cases of a check; with a world, those that fit its size.

    Raises:
        CourseError: no case fits.
    """
    numbers = range(exercise.case_count if world is None else 20 * exercise.case_count)
    cases = [redraw(exercise, seed, number) for number in numbers]
    fitting = [case for case in cases if world is None or case.world_size in (0, world.world_size)]
    if not fitting:
        sizes = sorted({case.world_size for case in cases})
        raise CourseError(
            f"{exercise.name}: its cases have {', '.join(map(str, sizes))} ranks, and {world} has another number. "
            "Give a world of one of these sizes, or none."
        )
    return fitting[: exercise.case_count]


def redraw(exercise: Declaration, seed: int, number: int) -> Case:
    """Return a case by what is stored in its `drawn`."""
    return replace(exercise.draw(random.Random(f"{exercise.name} {seed} {number}"), number), drawn=(seed, number))


class Runs:
    """The runs of a check: of the learner's function, which nothing else in a check runs, and of the course's own.

    Args:
        exercise: has the reference.
        solution: the learner's function.
        world: where to run, if not on simulated ranks.
    """

    def __init__(self, exercise: Declaration, solution: Solution, world: World | None = None) -> None:
        self.exercise, self.solution, self.world = exercise, solution, world
        self._trials: dict[Case, Trial] = {}

    def trial(self, case: Case) -> Trial:
        """Run the solution on a case, once."""
        if case not in self._trials:
            expected = self.recall(self.exercise.reference, case)
            with _bound_to_its_name(self.solution):
                yours = observe(self.exercise, self.solution, case, self.world)
            self._trials[case] = Trial(exercise=self.exercise, case=case, expected=expected, yours=yours)
        return self._trials[case]

    def recall(self, solution: Solution, case: Case) -> Observation:
        """Return the behaviour of one of the course's own solutions."""
        return recall(self.exercise, solution, case, self.world)


@contextmanager
def _bound_to_its_name(solution: Solution) -> Iterator[None]:
    """Bind the solution to its name while it runs, so that a recursive function calls itself.

    Its name may still belong to the reference, from an earlier run of the cell: then the reference would be checked.
    """
    name, variables = getattr(solution, "__name__", ""), getattr(solution, "__globals__", {})
    bound = getattr(solution, "__qualname__", "") == name and name in variables
    before = variables[name] if bound else None
    if bound:
        variables[name] = solution
    try:
        yield
    finally:
        if bound:
            variables[name] = before


def whole_numbers(*shape: int, seed: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return whole numbers from -500 to 500, different on each rank: their sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed + rank)
    return torch.randint(-500, 501, shape, generator=generator).to(dtype)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normal numbers, the same for the same seed. Add the rank to the seed for values of a rank's own."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def draw_world_size(rng: random.Random, number: int) -> int:
    """Return 2, 3, 4 and 1 ranks in the first four draws; then any of 2, 3 and 4."""
    return (2, 3, 4, 1)[number] if number < 4 else rng.randint(2, 4)


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32`."""
    return str(dtype).removeprefix("torch.")
