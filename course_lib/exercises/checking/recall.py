"""A cache of what the course's own solutions do: a reference or a known mistake behaves the same each time."""

from __future__ import annotations

from typing import Any

from ...world import RankError, World
from ..form.declaration import Case, Declaration, Solution
from .observe import Observation, observe

EXERCISES_KEPT = 4
"""The number of exercises for which observations are kept. Those of one exercise take some megabytes."""

_Observations = dict[tuple[Solution, tuple[Any, ...]], Observation]
_kept: dict[Declaration, _Observations] = {}
"""By exercise, the latest check last; then by solution and by the draw of the case."""


def recall(exercise: Declaration, solution: Solution, case: Case, world: World | None = None) -> Observation:
    """Return what `observe` returns, for one of the course's own solutions, from the cache.

    On simulated ranks it runs once for each case, while its exercise is among the last few that were checked.
    """
    if world is not None:
        return observe(exercise, solution, case, world)
    seen, key = _kept.pop(exercise, {}), (solution, case.drawn)
    _kept[exercise] = seen
    if len(_kept) > EXERCISES_KEPT:
        del _kept[next(iter(_kept))]
    if key not in seen:
        observation = observe(exercise, solution, case)
        if isinstance(observation.error, RankError) and observation.error.kind == "timeout":
            return observation  # a busy machine may be the reason
        seen[key] = observation
    return seen[key]
