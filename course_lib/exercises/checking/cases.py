"""The cases of a check: those that a solution must pass, its runs on them, and small ones that show where it fails.

And draws that exercises share, for their cases: world sizes, and tensors from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ...errors import CourseError
from ...world import World
from ..form.declaration import Case, Declaration, Solution
from .compare import differences, findings
from .findings import Finding
from .observe import Observation, Trial, observe, recall

DTYPES = (torch.float32, torch.int64, torch.float64)


class SmallNumbers(random.Random):
    """A random stream in which small whole numbers are likely. Numbers of 32 bits, such as seeds, stay as they are."""

    def getrandbits(self, k: int, /) -> int:
        bits = super().getrandbits
        return min(bits(k) for _ in range(16 if k < 32 else 1))


def draw(
    exercise: Declaration, seed: int, world: World | None = None, *, stream: type[random.Random] = random.Random
) -> list[Case]:
    """Return the cases of a check; with a world, those that fit its size.

    Raises:
        CourseError: no case fits.
    """
    numbers = range(exercise.case_count if world is None else 20 * exercise.case_count)
    cases = [redraw(exercise, seed, number, stream) for number in numbers]
    fitting = [case for case in cases if world is None or case.world_size in (0, world.world_size)]
    if not fitting:
        sizes = sorted({case.world_size for case in cases})
        raise CourseError(
            f"{exercise.name}: its cases have {', '.join(map(str, sizes))} ranks, and {world} has another number. "
            "Give a world of one of these sizes, or none."
        )
    return fitting[: exercise.case_count]


def redraw(exercise: Declaration, seed: int, number: int, stream: type[random.Random]) -> Case:
    """Return a case by what is stored in its `drawn`."""
    return replace(exercise.draw(stream(f"{exercise.name} {seed} {number}"), number), drawn=(seed, number, stream))


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


def smallest(failed: Trial, found: list[Finding], run: Callable[[Case], Trial]) -> tuple[Trial, list[Finding]]:
    """Return a trial with the fewest ranks, and few elements, that fails in the same way, and its findings.

    On one rank, a part is the whole and a sum the mean. Wrong values there count only if `failed` has one rank, too.

    Where its numbers are right, such as on one rank, a solution may break a rule. That is another failure.

    If no smaller case fails, these are `failed` and its findings, `found`.
    """
    most_ranks = failed.case.world_size
    compared = differences if differences(failed) else findings
    cases = draw(failed.exercise, failed.case.drawn[0], stream=SmallNumbers)
    for case in sorted(cases, key=lambda case: case.world_size):
        if case.world_size > most_ranks:
            break
        trial = run(case)
        if case.world_size == 1 < most_ranks and compared is differences and trial.yours.error is None:
            continue
        if trial.expected.error is None and (here := compared(trial)):
            return trial, here
    return failed, found


def whole_numbers(*shape: int, seed: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return whole numbers from -500 to 500, different on each rank: their sums are exact in every dtype.

    In int64, the first one is a number that float32 does not have, so that a trip through float32 shows.
    """
    generator = torch.Generator().manual_seed(seed + rank)
    numbers = torch.randint(-500, 501, shape, generator=generator).to(dtype)
    if dtype == torch.int64:
        numbers.flatten()[:1] = 2**24 + 1 + 2 * rank
    return numbers


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normal numbers, the same for the same seed. Add the rank to the seed for values of a rank's own."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def draw_world_size(rng: random.Random, number: int) -> int:
    """Return 2, 3, 4 and 1 ranks in the first four draws; then any of 2, 3 and 4."""
    return (2, 3, 4, 1)[number] if number < 4 else rng.randint(2, 4)


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32`."""
    return str(dtype).removeprefix("torch.")
