"""How small the case is that a verdict shows: medians over all known mistakes."""

import time
from collections.abc import Iterator
from statistics import median

from course_lib.exercises import Exercise, Solution, get, names
from course_lib.exercises.checking.cases import Runs, draw, smallest
from course_lib.exercises.checking.compare import findings
from course_lib.exercises.checking.plain import Array, Plain, leaves

from .measure import Row


def rows() -> Iterator[Row]:
    """The rows of this benchmark."""
    exercises = map(get, names())
    shown = [smallest_case(exercise, mistake.solution) for exercise in exercises for mistake in exercise.mistakes]
    ranks, elements, seconds = (median(values) for values in zip(*shown, strict=True))
    yield Row(what="smallest failing case: ranks", ours=ranks, unit="ranks", most=2)
    yield Row(what="smallest failing case: elements", ours=elements, unit="elements", most=4)
    yield Row(what="search for the smallest failing case", ours=seconds, most=1)


def smallest_case(exercise: Exercise, solution: Solution) -> tuple[int, int, float]:
    """Return the ranks and elements of the case that the verdict on `solution` shows, and the seconds to find it."""
    runs = Runs(exercise, solution)
    trials = map(runs.trial, draw(exercise, seed=0))
    failed, found = next((trial, found) for trial in trials if (found := findings(trial)))
    start = time.perf_counter()
    shown, _ = smallest(failed, found, runs.trial)
    took = time.perf_counter() - start
    return shown.world_size, max(map(numel, zip(shown.expected.before, shown.expected.values, strict=True))), took


def numel(parts: tuple[Plain, Plain]) -> int:
    """Return the number of elements in the tensors of the arguments or in those of the result, whichever is larger."""
    return max(sum(len(leaf.numbers) for leaf in leaves(part) if isinstance(leaf, Array)) for part in parts)
