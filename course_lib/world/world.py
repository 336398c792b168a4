"""`World` and `Run`: the same function on every rank, and what came of it."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import CourseError
from ..meter import MemoryReport
from ..meter.allocator import ALLOCATORS
from ..meter.comm import Communication, matrix
from ..meter.timeline import Timeline, save_trace
from . import metered, simulated
from .calls import Call
from .failure import RankError
from .rank import Rank

if TYPE_CHECKING:
    from ..plots import Picture

MAX_RANKS = 64
"""The most ranks that a simulated world has."""

BACKENDS = ("simulated",)


class World:
    """A number of ranks that run the same function.

    Args:
        world_size: how many ranks, 1 to 64.
        backend: where they live. `"simulated"`: threads of this process with real gloo between them. By default
            what `$COURSE_WORLD` says, and `"simulated"` where that is not set.
        timeout: seconds after which a run is stopped.
        measure: whether the memory of each rank is measured: a run's `memory`.
        allocator: how many bytes count for a tensor. By default those it needs; `"cuda"`: what CUDA's caching
            allocator would give it.

    Raises:
        CourseError: an argument is not what it should be.

    Example:
        >>> World(4).run(lambda: dist.get_rank() ** 2)[3]
        9
    """

    def __init__(
        self,
        world_size: int,
        *,
        backend: str | None = None,
        timeout: float = 60.0,
        measure: bool = True,
        allocator: str | None = None,
    ) -> None:
        if isinstance(world_size, bool) or not hasattr(world_size, "__index__"):
            raise CourseError(
                f"World({world_size!r}): the number of ranks must be a whole number, "
                f"not a {type(world_size).__name__}. For example World(4)."
            )
        if not 1 <= world_size <= MAX_RANKS:
            raise CourseError(
                f"World({world_size}): a simulated world has 1 to {MAX_RANKS} ranks, one thread each. "
                f"Choose a number in that range."
            )
        backend = backend if backend is not None else os.environ.get("COURSE_WORLD") or "simulated"
        if backend not in BACKENDS:
            raise CourseError(
                f"World(backend={backend!r}): there is no such backend here; there is {', '.join(BACKENDS)}. "
                "Leave the argument out, and unset $COURSE_WORLD, for simulated ranks."
            )
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise CourseError(
                f"World(timeout={timeout!r}): the time limit is a number of seconds above 0. For example timeout=60."
            )
        if allocator not in ALLOCATORS:
            raise CourseError(
                f"World(allocator={allocator!r}): there is no such allocator here; there is 'cuda', which counts bytes "
                "as a GPU's would. Leave the argument out for the bytes that tensors need."
            )
        self.world_size = int(world_size)
        self.backend = backend
        self.timeout = float(timeout)
        self.measure = measure
        self.allocator = allocator

    def __repr__(self) -> str:
        return f"World({self.world_size}, backend={self.backend!r})"

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Run:
        """Call `fn(*args, **kwargs)` on every rank at once, and wait for all.

        Inside it, `torch.distributed` is ready: the default group holds all ranks. Every rank works on its own copy
        of `fn`, of the arguments and of the variables that it reads, as separate processes would; what should come
        back is returned. What ranks print is shown when the run ends, rank by rank.

        Returns:
            A `Run`: what each rank returned.

        Raises:
            RankError: a rank failed, ranks did not fit together, or the time limit passed. Every rank is stopped.
            KeyboardInterrupt: the run was interrupted. Every rank is stopped.
            CourseError: `fn` cannot be called like this.
        """
        caller = threading.current_thread()
        if isinstance(caller, Rank):
            raise CourseError(
                f"rank {caller.rank} called World.run: a rank cannot start a world of its own. "
                "Call World.run in the notebook, and collectives inside the function."
            )
        check_call(fn, args, kwargs)
        try:
            size_of = ALLOCATORS[self.allocator] if self.measure else None
            outcome = simulated.run(self.world_size, fn, args, kwargs, self.timeout, size_of)
        except RankError as error:
            show(error.output)
            raise
        show(outcome.output)
        return Run(outcome)


class Run(Sequence[Any]):
    """What a run gave: `run[2]` is what rank 2 returned, `list(run)` what each did.

    Attributes:
        output: what each rank printed, by rank.
        calls: the collectives, messages and new groups that each rank took part in, by rank, in their order.
    """

    def __init__(self, outcome: simulated.Outcome) -> None:
        self._results, self.output = tuple(outcome.results), tuple(outcome.output)
        self.calls: tuple[tuple[Call, ...], ...] = tuple(map(tuple, outcome.calls))
        self._started, self._spans = outcome.started, outcome.spans
        self._memory = tuple(outcome.memory)

    @property
    def memory(self) -> tuple[MemoryReport, ...]:
        """What each rank held, by rank: when its function returned, at its marks, at the peak, and over time.

        Raises:
            CourseError: the world was told not to measure.
        """
        if not self._memory:
            raise CourseError(
                "run.memory: this run was not measured, for its world was made with measure=False. "
                "Make it without that, and run again."
            )
        return self._memory

    @cached_property
    def comm(self) -> tuple[Communication, ...]:
        """What each rank sent, by rank: bytes by meaning, and every call."""
        return tuple(metered.communication(rank, calls, self._started) for rank, calls in enumerate(self.calls))

    @property
    def comm_matrix(self) -> tuple[tuple[int, ...], ...]:
        """Who sent how much to whom: `comm_matrix[a][b]` is how many bytes rank a sent to rank b."""
        return matrix(self.comm)

    @cached_property
    def timeline(self) -> tuple[Timeline, ...]:
        """What each rank did and when, by rank: computed, waited, and what was in flight."""
        return tuple(
            metered.timeline(comm, entered, left, self._started)
            for comm, (entered, left) in zip(self.comm, self._spans, strict=True)
        )

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timelines to a file that ui.perfetto.dev opens, one process for each rank."""
        save_trace(path, self.timeline)

    def plot_memory(self) -> Picture:
        """What each rank held over time, by category."""
        from ..plots import plot_memory  # here and below: matplotlib takes half a second to load, for who draws only

        return plot_memory(self.memory)

    def plot_comm(self) -> Picture:
        """Who sent how much to whom, as a heat map."""
        from ..plots import plot_comm

        return plot_comm(self.comm_matrix)

    def plot_timeline(self) -> Picture:
        """What each rank did and when, as a Gantt chart."""
        from ..plots import plot_timeline

        return plot_timeline(self.timeline)

    def plot_shards(self) -> Picture:
        """Who holds which slice of which tensor, where each rank returned (name, numel, start, stop) of its slices.

        Raises:
            CourseError: a rank returned something else.
        """
        from ..plots import plot_shards

        tensors: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for rank, slices in enumerate(self):
            try:
                for name, numel, start, stop in slices:
                    tensors.setdefault((name, numel), []).append((rank, start, stop))
            except (TypeError, ValueError):
                raise CourseError(
                    f"plot_shards draws slices, and rank {rank} returned {_short(slices, 60)}. Let every rank return a "
                    "list with (name, numel, start, stop) of each slice that it holds."
                ) from None
        return plot_shards([(name, numel, slices) for (name, numel), slices in tensors.items()])

    def __getitem__(self, rank: Any) -> Any:
        return self._results[rank]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._results)

    def __repr__(self) -> str:
        return "\n".join(["Run", *(f"  rank {rank}: {_short(result)}" for rank, result in enumerate(self))])


def _short(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def show(output: Sequence[str]) -> None:
    """Print what ranks printed, in the order of ranks, each line with its rank."""
    for rank, text in enumerate(output):
        for line in text.splitlines():
            print(f"[rank {rank}] {line}")


def check_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse, before any rank starts, what could not be called on them.

    Raises:
        CourseError: `fn` is not a plain function, or does not take these arguments.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    if not callable(fn):
        raise CourseError(
            f"World.run was given {_short(fn, 60)}, a {type(fn).__name__}, and needs a function to call on every rank. "
            "Pass the function itself, without parentheses: world.run(step), not world.run(step())."
        )
    if asyncio.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise CourseError(
            f"World.run was given {name}, whose body would not run when it is called (it is a coroutine or a "
            "generator). Make it a plain function: no async, no yield."
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have no signature to compare with
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CourseError(
            f"World.run cannot call {name}{signature} with these arguments: {error}. Give them after the function, as "
            f"in world.run({name}, 1, 2). A rank's own number is not among them: ask dist.get_rank()."
        ) from None
