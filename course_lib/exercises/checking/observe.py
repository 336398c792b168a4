"""Runs a solution on one case and keeps, as plain data, what it did.

Observation     what a solution did on a case
Trial           one case: what the reference did, and what the solution under test did
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ...errors import CourseError
from ...meter import MemoryReport
from ...world import Call, RankError, World, who
from .plain import Plain, plain

if TYPE_CHECKING:
    from ..declare import Case, Exercise, Solution

TIME_LIMIT = 10.0
"""Seconds that a solution has for one case."""


EXERCISES_REMEMBERED = 4
"""Of how many exercises it is remembered what their references and known mistakes do."""

_recent: list[dict[Any, Observation]] = []  # of these exercises; the one that was checked last at the end


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a solution did on a case; all but `error` by rank, and empty where there is an error.

    Attributes:
        values: what came of it, as plain data: what it returned, or what the exercise's `trial` gave.
        before: its arguments before the call.
        after: its arguments after the call.
        calls: its part in collectives and messages.
        memory: what it held, without its timeline; empty, too, where the exercise is not `measured`.
        output: what it printed; also where there is an error.
        error: why it did not end well.
    """

    values: tuple[Plain, ...] = ()
    before: tuple[Plain, ...] = ()
    after: tuple[Plain, ...] = ()
    calls: tuple[tuple[Call, ...], ...] = ()
    memory: tuple[MemoryReport, ...] = ()
    output: tuple[str, ...] = ()
    error: CourseError | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One case of a check.

    Attributes:
        exercise: what the solution is for.
        case: what it was called with.
        expected: what the reference did.
        yours: what the solution did.
    """

    exercise: Exercise
    case: Case
    expected: Observation
    yours: Observation

    @property
    def world_size(self) -> int:
        """The number of ranks; 1 for a solution that was called without a world."""
        return self.case.world_size or 1

    def who(self, ranks: Sequence[int]) -> str:
        """`rank 2`, `all 4 ranks`; without a world, `your function`."""
        return who(ranks, self.world_size) if self.case.world_size else "your function"


def observe(exercise: Exercise, solution: Solution, case: Case, world: World | None = None) -> Observation:
    """Run `solution` on `case`, on copies of its own.

    Without a world to run on, it gets simulated ranks. A case without ranks runs on one, for the sake of its time
    limit and its streams.

    Raises:
        KeyboardInterrupt: it was interrupted. Every rank is stopped.
    """
    world = world or World(case.world_size or 1, backend="simulated", timeout=TIME_LIMIT, measure=exercise.measured)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # World.run shows what ranks print; it is in `output` too
            run = world.run(_on_rank, exercise.trial or _call, solution, case.args)
    except CourseError as error:
        return Observation(error=error, output=error.output if isinstance(error, RankError) else ())
    values, before, after = zip(*run, strict=True)
    memory = tuple(replace(report, changes=()) for report in run.memory) if exercise.measured else ()
    return Observation(
        values=values, before=before, after=after, calls=run.calls, memory=memory, output=tuple(run.output)
    )


def recall(exercise: Exercise, solution: Solution, case: Case, world: World | None = None) -> Observation:
    """As `observe`, for a solution of the course's own. On simulated ranks it is run once for each case, as long as its
    exercise is among the last few that were checked: what one's mistakes do takes some megabytes."""
    if world is not None:
        return observe(exercise, solution, case, world)
    seen, key = exercise.remembered.observed, (solution, case.drawn)
    _recent[:] = [*(other for other in _recent if other is not seen), seen]
    if len(_recent) > EXERCISES_REMEMBERED:
        _recent.pop(0).clear()
    if key not in seen:
        observation = observe(exercise, solution, case)
        if isinstance(observation.error, RankError) and observation.error.kind == "timeout":
            return observation  # a busy machine's doing, maybe
        seen[key] = observation
    return seen[key]


def _on_rank(
    trial: Callable[..., Any], solution: Solution, args: Callable[[int], tuple[Any, ...]]
) -> tuple[Plain, Plain, Plain]:
    arguments = args(dist.get_rank())
    before = plain(arguments)
    value = plain(trial(solution, *arguments))  # at once: what is not there yet when it returns must not count
    return value, before, plain(arguments)


def _call(solution: Solution, *args: Any) -> Any:
    return solution(*args)
