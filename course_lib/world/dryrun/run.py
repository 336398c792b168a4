"""`DryRunResult`: the result of a dry run, with one rank, indexed by its rank number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from ...errors import CourseError
from ..pickling import shortened
from ..run import Run

_Value = TypeVar("_Value")


class OnlyRank(tuple[_Value, ...]):
    """A tuple with one rank's entry, indexed by that rank: `it[63]`. Its length is 1, so it can be iterated."""

    _name: str
    _rank: int
    _world_size: int

    def __new__(cls, name: str, values: Iterable[_Value], rank: int, world_size: int) -> OnlyRank[_Value]:
        self = super().__new__(cls, values)
        self._name, self._rank, self._world_size = name, rank, world_size
        return self

    def __getitem__(self, rank: Any) -> Any:
        if rank not in (self._rank, self._rank - self._world_size):  # a negative index counts from the end
            raise CourseError(
                f"{self._name}[{rank!r}]: a dry run runs one rank, here rank {self._rank} of {self._world_size}, and "
                f"tells of no other. Ask for {self._name}[{self._rank}], or make another world: "
                f'World({self._world_size}, backend="dryrun", rank=...).'
            )
        return super().__getitem__(0)

    def __repr__(self) -> str:
        return f"rank {self._rank} of {self._world_size}: {super().__getitem__(0)!r}"


class DryRunResult(Run):
    """The result of one rank out of many: `run[63]`, `run.memory[63]`, `run.comm[63]`."""

    def __init__(self, *, rank: int, world_size: int, **of_one_rank: Any) -> None:
        self._rank, self._world_size = rank, world_size
        super().__init__(**of_one_rank)

    @property
    def _ranks(self) -> list[int]:
        return [self._rank]

    def _by_rank(self, name: str, values: Iterable[_Value]) -> OnlyRank[_Value]:
        return OnlyRank(name, values, self._rank, self._world_size)

    @property
    def comm_matrix(self) -> NoReturn:
        raise CourseError(
            "run.comm_matrix: who sends to whom takes all ranks, and a dry run runs one. See run.comm, or run the same "
            "function in a small world: World(4)."
        )

    @property
    def timeline(self) -> NoReturn:
        raise CourseError(
            "run.timeline: a dry run computes nothing, so its times tell nothing. Ask the planner how long a step "
            "takes, with plan(...).step_seconds(hardware), or run the function in a small world: World(4)."
        )

    def __repr__(self) -> str:
        return f"Run\n  rank {self._rank} of {self._world_size}: {shortened(next(iter(self)))}"
