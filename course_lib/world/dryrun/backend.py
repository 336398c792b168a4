"""The dry run: one rank out of any number, with tensors that have a size and no memory. It shows what a rank holds and
sends.

A thread runs the learner's function as that rank. Its tensors are fake (`fake_tensors`), its peers do not exist, and
the meter counts as usual: so 7.5 B parameters on 16,384 ranks fit in a laptop. A collective finishes at once: the shape
of its result is known, the numbers are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ...errors import CourseError
from ...meter import tensors_in
from ..collectives.fault import State
from ..collectives.local_call import LocalCall
from ..errors.message import error_of
from ..errors.rank_error import Kept
from ..pickling.calls import FunctionCall, shortened
from ..pickling.kernel_classes import KernelUnpickler
from ..rank_threads import process_state
from ..rank_threads.coordinator import ThreadCoordinator
from ..rank_threads.rank_thread import RankThread
from ..rank_threads.supervisor import run_ranks
from ..run import Order, Run
from ..torch_hooks import interposer, private
from ..torch_hooks.patching import Replacement
from .fake_patches import replacements
from .fake_tensors import FakeUnpickler, WithoutNumbers


class DryRun:
    """A world in which only `rank` runs: see `backends.Backend`."""

    def __init__(self, world_size: int, rank: int = 0) -> None:
        if world_size < 1:
            raise CourseError(f"World({world_size}): a world has at least one rank. For example World(64).")
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise CourseError(
                f"World({world_size}, backend='dryrun', rank={rank!r}): there is no such rank. A dry run runs one of "
                f"the ranks 0 to {world_size - 1}: rank={world_size - 1} is the last, whose shards have the padding."
            )
        self._world_size, self._rank = world_size, rank

    def run(self, order: Order) -> DryRunResult:
        with process_state.of_threads(_replacements(), measure=order.size_of is not None):
            coordinator = WithoutPeers(self._rank, self._world_size)
            rank = DryRank(self._rank, coordinator, order.packed, order.size_of)
            reports = run_ranks(coordinator, [rank], order.timeout, order.late, order.lines)
        kept = Kept(
            output=[rank.rank_state.printed.text],
            calls=[rank.recorder.calls],
            spans=[coordinator.spans[self._rank]],
            memory=[rank.memory],
        )
        if coordinator.fault is not None:
            raise error_of(coordinator.fault, reports, order.timeout, kept=kept, world_size=self._world_size)
        return DryRunResult(results=[rank.result], rank=self._rank, kept=kept, world_size=self._world_size)


class WithoutPeers(ThreadCoordinator):
    """The coordinator of rank `rank`: the others have nothing to do, and every call proceeds at once."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(world_size)
        self.states = [State.RETURNED] * world_size
        self.states[rank] = State.RUNNING

    def called(self, local: LocalCall) -> None:
        pass

    def wait_for(self, local: LocalCall) -> None:
        pass


class DryRank(RankThread):
    """The rank: its thread and, afterwards, its result or exception."""

    def __init__(self, *thread: Any) -> None:
        super().__init__(*thread)
        self._mode = WithoutNumbers()
        self.store = dist.HashStore()

    def collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[..., Any]) -> Any:
        progress = self.recorder.collective(operator, arguments, ("cpu",))
        progress.matched = progress.done = progress.call.issued
        loan = None if self.meter is None else self.meter.lend(arguments.values())
        tensors = list(tensors_in(arguments))
        if not any(isinstance(tensor, private.FakeTensor) for tensor in tensors):
            return execute(*arguments.values())  # integers of DDP's C++ part: as if its peers had the same ones
        self._mode.forget(tensors)
        result, handle = private.completed(operator, arguments)
        if self.meter is not None and loan is not None:
            self.meter.lent(loan, progress, handle)
        return result

    def unpickler(self, packed: bytes) -> KernelUnpickler:
        return FakeUnpickler(packed, self._mode, self._made)

    def returned(self, call: FunctionCall) -> Any:
        with self._mode:
            result = super().returned(call)
        return private.without_mode(result)

    def _made(self, tensor: torch.Tensor) -> None:
        if self.meter is not None:
            self.meter.resized(tensor, "set_")  # the name of the operator that unpickles tensors


def _without_peers(helper: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for the function that makes process groups: a dry run's groups send nothing."""

    def new_group(size: int, rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(interposer.current(), DryRank):
            return helper(size, rank, ranks, backend, *args, **kwargs)
        group, store = helper(size, rank, ranks, private.without_peers, *args, **kwargs)
        if store is not None:  # this rank is a member
            c10d._world.pg_map[group] = (backend, store)  # get_backend returns the requested one
        return group, store

    return new_group


def _replacements() -> Iterator[Replacement]:
    yield c10d, "_new_process_group_helper", _without_peers(c10d._new_process_group_helper)
    yield from replacements()


# -- the result ------------------------------------------------------------------------------------------------------


class OnlyRank(tuple[Any, ...]):
    """A tuple with one rank's entry, indexed by that rank: `it[63]`. Its length is 1, so it can be iterated."""

    _name: str
    _rank: int
    _world_size: int

    def __new__(cls, name: str, values: Iterable[Any], rank: int, world_size: int) -> OnlyRank:
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

    def _by_rank(self, name: str, values: Iterable[Any]) -> OnlyRank:
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
