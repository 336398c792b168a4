"""`Order`: what ranks are asked to run. `Run`: the result of a function that ran on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import CourseError
from ..meter import Communication, MemoryReport, Replay, Timeline, film
from .collectives.call import Call
from .errors.layout import Layout, layout
from .errors.rank_error import Kept
from .errors.reported import About, report_of
from .errors.warnings import drift_warnings, not_finite_warnings, open_groups, shared_variables, unwaited
from .pickling.calls import shortened
from .rank_threads.printing import Lines

if TYPE_CHECKING:
    from ..plots import Picture, RunReport


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a backend is asked to run.

    Attributes:
        packed: the function and its arguments, of which each rank gets a copy; see `pickling.calls.unpack_call`.
        timeout: seconds after which ranks are stopped.
        size_of: maps the bytes that a tensor needs to the bytes that the allocator gives; None: memory is not measured.
            Other processes look it up by name.
        late: contains an interrupt as soon as it arrives; see `interrupts.put_off`.
        lines: prints what the ranks print.
    """

    packed: bytes
    timeout: float
    size_of: Callable[[int], int] | None
    late: list[Any]
    lines: Lines


class Run(Sequence[Any]):
    """The result of a run: `run[2]` is what rank 2 returned, `list(run)` what each rank returned.

    Attributes:
        output: what each rank printed, by rank.
        calls: each rank's collectives, messages and new groups, by rank, in order.
        about: the program that ran, and where and when it ran.
    """

    about: About

    def __init__(
        self,
        *,
        results: Iterable[Any],
        kept: Kept,
        shared: Sequence[str] = (),
    ) -> None:
        """Keep what a backend returns, by rank. `shared` are variables of modules that the run has set, and that all
        ranks share."""
        self._results, self.output = self._by_rank("run", results), self._by_rank("run.output", kept.output)
        self.calls: tuple[tuple[Call, ...], ...] = self._by_rank("run.calls", map(tuple, kept.calls))
        self._memory = self._by_rank("run.memory", [one for one in kept.memory if one is not None])
        self._kept, self._shared = kept, shared

    @property
    def _ranks(self) -> Sequence[int]:
        return range(len(self._results))

    def _by_rank(self, name: str, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(values)

    @property
    def memory(self) -> tuple[MemoryReport, ...]:
        """Each rank's memory, by rank: when its function returned, at its marks, at the peak, and over time.

        Raises:
            CourseError: the world was made with measure=False.
        """
        if not self._memory:
            raise CourseError(
                "run.memory: this run was not measured, for its world was made with measure=False. "
                "Make it without that, and run again."
            )
        return self._memory

    @cached_property
    def comm(self) -> tuple[Communication, ...]:
        """The bytes that each rank sent, by rank and meaning, and every call."""
        sent = (Communication(rank=r, calls=calls) for r, calls in zip(self._ranks, self.calls, strict=True))
        return self._by_rank("run.comm", sent)

    @property
    def comm_matrix(self) -> tuple[tuple[int, ...], ...]:
        """The bytes sent between each two ranks: rank a sent `comm_matrix[a][b]` bytes to rank b."""
        return tuple(tuple(sent.by_rank.get(peer, 0) for peer in range(len(self))) for sent in self.comm)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """A line for what is legal and yet very likely wrong: hazards, the first value that is not finite, and
        parameters of ranks that drift apart."""
        return (*self.hazards, *not_finite_warnings(self.calls), *drift_warnings(self.calls, self._memory))

    @cached_property
    def hazards(self) -> tuple[str, ...]:
        """A line for what makes results depend on chance: results that nobody waited for, and variables of modules that
        simulated ranks share."""
        return (*unwaited(self.calls), *shared_variables(self._shared, len(self)))

    @cached_property
    def timeline(self) -> tuple[Timeline, ...]:
        """The activity of each rank over time: computing, waiting, and calls in flight."""
        spans = zip(self.comm, filter(None, self._kept.spans), strict=True)
        return tuple(Timeline(rank=c.rank, start=start, end=end, calls=c.calls) for c, (start, end) in spans)

    def replay(self, *, memory: bool = True) -> Replay:
        """Return the run as a film: step by step, what every rank held, sent and waited for.

        With `memory=False`, the film leaves out what they held.
        """
        return Replay(film(tuple(self.calls), tuple(self._memory), self._ends, self._ranks, show_memory=memory))

    @property
    def _ends(self) -> list[tuple[str, None, str]]:
        """The state in which each rank ended, its line, which is unknown, and what it returned."""
        return [("returned", None, "" if result is None else shortened(result, 100)) for result in self]

    def report(self) -> RunReport:
        """Return the run as one HTML page: how it ended, memory, traffic, time, layout, replay, and printed lines.

        The page opens without a server and without a network: `run.report().save("run.html")`. It has the replay if the
        world was made with `replay=True`. A failed run has the same page: `RankError.report()`.
        """
        return report_of(
            about=self.about,
            ranks=self._ranks,
            kept=self._kept,
            ends=self._ends,
            results=tuple(self),
            warnings=(*self.warnings, *open_groups(self.calls)),
        )

    def layout(self) -> Layout:
        """Return a table of tensors: which are replicated, sharded, partial or different over the ranks.

        It compares what the ranks returned (tensors, modules, numbers, strings, and lists and dicts of them) and, in a
        world with `replay=True`, what they brought to each collective and received. Of numbers and strings, it shows
        those that differ. An arrow marks what may be a missing or a second reduction.
        """
        return layout(self.calls, tuple(self))

    def plot_memory(self, titles: Sequence[str] | None = None) -> Picture:
        """Plot what each rank held over time, by category. `titles` has a title for each rank."""
        from ..plots import plot_memory  # imported here and below, because most runs are not plotted

        return plot_memory(self.memory, titles)

    def plot_comm(self) -> Picture:
        """Plot the bytes sent between each two ranks as a heat map."""
        from ..plots import plot_comm

        return plot_comm(self.comm_matrix)

    def plot_timeline(self, after: str = "") -> Picture:
        """Plot what each rank did and when: in the whole run, or from the first mark `after` to the next of its name.

        Raises:
            CourseError: no rank has such a mark.
        """
        from ..plots import plot_timeline

        if not after:
            return plot_timeline(self.timeline)
        marks = [[seconds for label, seconds in rank.marked if label == after] for rank in self.memory]
        if not all(marks):
            raise CourseError(f"plot_timeline({after!r}): a rank has no such mark. Give the label of a mark.")
        ends = [theirs[1] if len(theirs) > 1 else line.end for theirs, line in zip(marks, self.timeline, strict=True)]
        return plot_timeline(self.timeline, between=(min(theirs[0] for theirs in marks), max(ends)))

    def plot_shards(self) -> Picture:
        """Plot which rank holds which slice of each tensor. Each rank must return a list with (name, numel, start,
        stop) of each slice that it holds."""
        from ..plots import plot_shards

        tensors: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for rank, slices in enumerate(self):
            for name, numel, start, stop in slices:
                tensors.setdefault((name, numel), []).append((rank, start, stop))
        return plot_shards([(name, numel, slices) for (name, numel), slices in tensors.items()])

    def __getitem__(self, rank: Any) -> Any:
        try:
            return self._results[rank]
        except IndexError:
            raise CourseError(f"run[{rank}]: this run has ranks 0 to {len(self) - 1}. Choose one of them.") from None

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._results)

    def __repr__(self) -> str:
        return "\n".join(["Run", *(f"  rank {rank}: {shortened(result)}" for rank, result in enumerate(self))])
