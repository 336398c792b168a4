"""Run a solution on one case and record its behaviour as plain data; recall that of the course's own solutions.

Observation     the behaviour of a solution on a case
Trial           one case: the behaviour of the reference, and of the solution under test
"""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from ...errors import CourseError, CourseWarning, who
from ...meter import MemoryReport, Replay
from ...world import Call, RankError, Run, World
from ..form.declaration import Case, Declaration, Solution
from .plain import Plain, plain

CPU_LIMIT = 10.0
"""Seconds of CPU time that a solution has for one case. They are its time limit, too. If the machine is busy, the run
is repeated with a longer limit."""

TIME_LIMIT = 60.0
"""The longest time limit, in seconds."""

EXERCISES_KEPT = 4
"""The number of exercises for which observations are kept. Those of one exercise take some megabytes."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The behaviour of a solution on a case; all but `warnings` and `error` by rank, and empty if there is an error.

    Attributes:
        values: the result, as plain data: what the solution returned, or what the exercise's `trial` returned.
        before: its arguments before the call.
        after: its arguments after the call.
        calls: its collectives and messages.
        warnings: the lines of `Run.hazards`.
        memory: its memory, without the timeline; empty if the exercise is not `measured`.
        output: what it printed; present even if there is an error.
        error: why it failed.
        cpu_seconds: the CPU time of this process in the run.
        cpu_share: the CPU time of this process in a run that its time limit stopped, as a share of the limit.
    """

    values: tuple[Plain, ...] = ()
    before: tuple[Plain, ...] = ()
    after: tuple[Plain, ...] = ()
    calls: tuple[tuple[Call, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    memory: tuple[MemoryReport, ...] = ()
    output: tuple[str, ...] = ()
    error: CourseError | None = None
    cpu_seconds: float = 0.0
    cpu_share: float = 1.0

    @property
    def timed_out(self) -> bool:
        """Whether the time limit stopped the run."""
        return isinstance(self.error, RankError) and self.error.kind == "timeout"

    @property
    def waited(self) -> bool:
        """Whether the time limit stopped a run that did not compute for most of the time."""
        return self.timed_out and self.cpu_share < 0.5

    @property
    def call_forms(self) -> list[list[Any]]:
        """The form of each call, by rank: what was called, in which group, its root, reduction, dtype and shapes."""
        return [
            [(call.variant, call.ranks, call.root, call.reduce_op, call.dtype, call.shapes) for call in calls]
            for calls in self.calls
        ]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One case of a check.

    Attributes:
        exercise: the exercise.
        case: the arguments and ranks.
        expected: the reference's behaviour.
        yours: the solution's behaviour.
    """

    exercise: Declaration
    case: Case
    expected: Observation
    yours: Observation

    @property
    def world_size(self) -> int:
        """The number of ranks; 1 for a solution that was called without a world."""
        return self.case.world_size or 1

    def who(self, ranks: Sequence[int]) -> str:
        """Return `rank 2`, `all 4 ranks`; without a world, `your function`."""
        return who(ranks, self.world_size) if self.case.world_size else "your function"


def observe(exercise: Declaration, solution: Solution, case: Case, world: World | None = None) -> Observation:
    """Run `solution` on `case`, on its own copies.

    Without a world, it runs on simulated ranks. A case without ranks runs on one rank, for its time limit and its
    output.

    Raises:
        KeyboardInterrupt: it was interrupted. Every rank is stopped.
    """
    if world is not None:
        return replace(_observed(exercise, solution, case, world), cpu_share=1.0)  # its ranks may be other processes
    seen = _observed(exercise, solution, case, _world(exercise, case, CPU_LIMIT))
    if seen.waited:
        limit = min(TIME_LIMIT, CPU_LIMIT / max(seen.cpu_share, 0.01))
        seen = _observed(exercise, solution, case, _world(exercise, case, limit))
    return seen


def _world(exercise: Declaration, case: Case, timeout: float) -> World:
    return World(
        case.world_size or 1,
        backend="simulated",
        timeout=timeout,
        measure=exercise.measured,
        strict=exercise.asynchronous,
    )


def _observed(exercise: Declaration, solution: Solution, case: Case, world: World) -> Observation:
    cpu = time.process_time()
    try:
        run = _run(exercise, solution, case, world, _on_rank)
    except CourseError as error:
        output = error.output if isinstance(error, RankError) else ()
        return Observation(error=error, output=output, cpu_share=(time.process_time() - cpu) / world.timeout)
    values, before, after = zip(*run, strict=True)
    memory = tuple(replace(report, timeline=()) for report in run.memory) if exercise.measured else ()
    return Observation(
        values=values,
        before=before,
        after=after,
        calls=run.calls,
        warnings=run.hazards,
        memory=memory,
        output=tuple(run.output),
        cpu_seconds=time.process_time() - cpu,
    )


def _run(exercise: Declaration, solution: Solution, case: Case, world: World, on_rank: Callable[..., object]) -> Run:
    # World.run shows what ranks print and warns; the verdict contains both.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), _unwritten_is_nan():
        warnings.simplefilter("ignore", CourseWarning)
        warnings.filterwarnings("ignore", ".* does not have a deterministic implementation", UserWarning)
        return world.run(on_rank, exercise.trial or returned, solution, case.args)


@contextlib.contextmanager
def _unwritten_is_nan() -> Iterator[None]:
    """Fill new memory with NaN, or the largest whole number: `torch.empty` may return zeros by chance.

    torch does it in its deterministic mode. On the CPU, the mode only adds warnings; on a GPU, it chooses other
    algorithms.
    """
    before = torch.get_deterministic_debug_mode()
    if before == 0 and torch.get_default_device().type == "cpu":
        torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def film(exercise: Declaration, solution: Solution, case: Case) -> Replay:
    """Return the replay of a run of `solution` on `case`, also of one that fails."""
    world = World(case.world_size or 1, backend="simulated", timeout=CPU_LIMIT, replay=True)
    try:
        return _run(exercise, solution, case, world, value_on_rank).replay()
    except RankError as error:
        return error.replay()


_kept: dict[Declaration, dict[Any, Observation]] = {}
"""By exercise, the one that was checked last at the end: observations by solution, draw of the case, and world."""


def recall(exercise: Declaration, solution: Solution, case: Case, world: World | None = None) -> Observation:
    """Return what `observe` returns, for one of the course's own solutions, from the cache.

    It runs once for each case, while its exercise is among the last few that were checked.
    """
    seen, key = _kept.pop(exercise, {}), (solution, case.drawn, world)
    _kept[exercise] = seen
    if len(_kept) > EXERCISES_KEPT:
        del _kept[next(iter(_kept))]
    if key not in seen:
        observation = observe(exercise, solution, case, world)
        if observation.timed_out:
            return observation  # a busy machine may be the reason
        seen[key] = observation
    return seen[key]


def _on_rank(
    trial: Callable[..., Any], solution: Solution, args: Callable[[int], tuple[Any, ...]]
) -> tuple[Plain, Plain, Plain]:
    __tracebackhide__ = True
    with _unwritten_is_nan():  # in a process of the rank's own
        arguments = args(dist.get_rank())
        before = plain(arguments)
        value = plain(trial(solution, *arguments))  # immediately: what is missing when it returns must not count
        return value, before, plain(arguments)


def value_on_rank(trial: Callable[..., Any], solution: Solution, args: Callable[[int], tuple[Any, ...]]) -> Any:
    """Return what the `trial` of an exercise returns on this rank."""
    __tracebackhide__ = True
    return trial(solution, *args(dist.get_rank()))


def returned(solution: Solution, *args: Any) -> Any:
    """Return what the solution returns: the `trial` of an exercise that declares none."""
    __tracebackhide__ = True
    return solution(*args)
