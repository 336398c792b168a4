"""The dry run: one rank out of any number, with tensors that have a size and no memory. It shows what a rank holds and
sends.

A thread runs the learner's function as that rank. Its tensors are fake (`fake_tensors`), its peers do not exist
(`rank`), and the meter counts as usual: so 7.5 B parameters on 16,384 ranks fit in a laptop. The memory that a CPU's
kernels use while they compute, such as an LSTM's, is not counted: there, the peak is lower than on real ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from torch.distributed import distributed_c10d as c10d

from ...errors import CourseError
from .. import measured
from ..errors.message import error_of
from ..pickling import Copies
from ..rank_threads import interrupts, process_state
from ..rank_threads.supervisor import run_ranks
from ..run import show
from ..torch_hooks import interposer, private
from ..torch_hooks.patching import Replacement, SharedContext, replaced
from .fake_patches import replacements
from .rank import DryRank, WithoutPeers
from .run import DryRunResult

CLOSING = 0.6
"""Seconds in which the rank must end its groups, before it is left behind."""


class DryRun:
    """A world in which one rank runs: see `backends.Backend`.

    Args:
        world_size: number of ranks.
        rank: the rank that runs.

    Raises:
        CourseError: the rank does not exist.
    """

    def __init__(self, world_size: int, rank: int = 0) -> None:
        if world_size < 1:
            raise CourseError(f"World({world_size}): a world has at least one rank. For example World(64).")
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise CourseError(
                f"World({world_size}, backend='dryrun', rank={rank!r}): there is no such rank. A dry run runs one of "
                f"the ranks 0 to {world_size - 1}: rank={world_size - 1} is the last, whose shards have the padding."
            )
        self._world_size, self._rank = world_size, rank

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        timeout: float,
        size_of: Callable[[int], int] | None,
    ) -> DryRunResult:
        """Call `fn(*args, **kwargs)` as that rank."""
        with interrupts.put_off() as late:
            return self._run(Copies(fn, args, kwargs), timeout, size_of, late)

    def _run(
        self, copies: Copies, timeout: float, size_of: Callable[[int], int] | None, late: list[Any]
    ) -> DryRunResult:
        coordinator = WithoutPeers(self._rank, self._world_size)
        rank = DryRank(self._rank, coordinator, copies)
        if size_of is not None:
            rank.meter = measured.memory_meter(self._rank, coordinator.started, size_of, WeakSet())
        with process_state.of_threads(measured=size_of is not None), _dry_threads.in_use():
            reports = run_ranks(coordinator, [rank], timeout, late)
            rank.join(CLOSING)
        output = rank.rank_state.output
        show(output, self._rank)
        if coordinator.fault is not None:
            ended = [report.ended(rank.raised, stopped=not rank.is_alive()) for report in reports]
            raise error_of(coordinator.fault, ended, None, timeout, [output], world_size=self._world_size)
        return DryRunResult(
            results=[rank.result],
            output=[output],
            calls=[rank.recorder.calls],
            started=coordinator.started,
            spans=[coordinator.spans[self._rank]],
            memory=[] if rank.meter is None else [rank.meter.report()],
            rank=self._rank,
            world_size=self._world_size,
        )


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


_dry_threads = SharedContext(lambda: replaced(_replacements()))
"""The context in which threads may be dry runs. Process-wide, because it replaces functions of torch."""
