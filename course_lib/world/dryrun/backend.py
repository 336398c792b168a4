"""The dry run: one rank out of any number, with tensors that have a size and no memory. It shows what a rank holds and
sends.

A thread runs the learner's function as that rank. Its tensors are fake (`fake_tensors`), its peers do not exist
(`rank`), and the meter counts as usual: so 7.5 B parameters on 16,384 ranks fit in a laptop. The memory that a CPU's
kernels use while they compute, such as an LSTM's, is not counted: there, the peak is lower than on real ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from torch.distributed import distributed_c10d as c10d

from ...errors import CourseError
from .. import measured
from ..collectives.fault import RankReport
from ..errors.message import MORE_TIME, RUN_AGAIN, still_busy
from ..errors.rank_error import Interrupted, RankError, advice_for, quoted
from ..learner_code import source_line_of
from ..pickling import Copies
from ..rank_threads import interrupts, process_state, stopping
from ..torch_hooks import interposer, private
from ..torch_hooks.patching import Replacement, SharedContext, replaced
from .fake_patches import replacements
from .fake_tensors import NoNumbers
from .rank import DryRank, NotInGroup
from .run import DryOutcome

GRACE = 1.0
"""Seconds in which a rank must stop, before it is abandoned."""


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
    ) -> DryOutcome:
        """Call `fn(*args, **kwargs)` as that rank."""
        with interrupts.put_off() as late:
            return self._run(Copies(fn, args, kwargs), timeout, size_of, late)

    def _run(self, copies: Copies, timeout: float, size_of: Callable[[int], int] | None, late: list[Any]) -> DryOutcome:
        started = time.perf_counter()
        meter = None if size_of is None else measured.memory_meter(self._rank, started, size_of, WeakSet())
        rank = DryRank(self._rank, self._world_size, copies, meter)
        with process_state.of_threads(measured=meter is not None), _dry_threads.in_use():
            failure = _supervised(rank, timeout, late)
        for line in rank.rank_state.output.splitlines():
            print(f"[rank {self._rank}] {line}")
        if failure is not None:
            raise failure from None
        return DryOutcome(
            results=[rank.result],
            output=[rank.rank_state.output],
            calls=[rank.recorder.calls],
            started=started,
            spans=[rank.span],
            memory=[meter.report()] if meter is not None else [],
            rank=self._rank,
            world_size=self._world_size,
        )


def _supervised(rank: DryRank, timeout: float, late: list[Any]) -> RankError | Interrupted | None:
    """Run `rank` until it has left, its time is over, or `late` holds an interrupt. Return what went wrong."""
    deadline = time.monotonic() + timeout
    source_line = None
    rank.start()
    while rank.is_alive() and not late and time.monotonic() < deadline:
        rank.join(0.1)  # short, to notice `late`
    if rank.is_alive():
        kind = "interrupted" if late else "timeout"
        source_line = source_line_of(rank)
        _stop(rank)
    elif rank.error is None:
        return None
    else:
        kind = {SystemExit: "exited", NotInGroup: "not_in_group"}.get(rank.error, "raised")
    report = RankReport(
        rank=rank.rank,
        state="running" if rank.raised is None else "raised",
        source_line=source_line,
        raised=None if kind in ("timeout", "interrupted") else rank.raised,
        stopped=not rank.is_alive(),
    )
    message = _message(kind, report, rank.world_size, timeout)
    if kind == "interrupted":
        late.clear()
        return Interrupted(message)
    return RankError(message, kind=kind, rank=rank.rank, ranks=[report], output=[rank.rank_state.output])


def _stop(rank: DryRank) -> None:
    began = time.monotonic()
    deadline = began + GRACE
    while rank.is_alive() and (now := time.monotonic()) < deadline:
        if now < began + stopping.IMPORTING and stopping.imports(rank):
            deadline = now + GRACE
        else:
            rank.stop()
        rank.join(0.02)
    stopping.stop_looking()


def _message(kind: str, report: RankReport, world_size: int, timeout: float) -> str:
    """Return the message of the `RankError`."""
    who = f"the dry run of rank {report.rank} of {world_size}"
    source_line, advice = report.source_line, RUN_AGAIN
    if report.raised is not None:
        source_line, advice = (
            report.raised.source_line,
            advice_for(report.raised.message) or "fix that line and run it again.",
        )
        headline = f"{who} raised {report.raised}"
        if report.raised.type == NoNumbers.__name__:
            headline = f"{who}: {report.raised.message}"
            advice = (
                "decide by what is known without computing, such as shapes, ranks and Python's own numbers, or leave "
                "that line out of the dry run. Where the number matters, run the function in a small world: World(4)."
            )
    elif kind == "timeout":
        headline = f"{who} was stopped after its time limit of {timeout:g} s"
        advice = f"look for a loop that never ends; {MORE_TIME}"
    else:
        headline = f"{who} was interrupted"
    lines = [headline, *([f"  at {quoted(source_line)}"] if source_line is not None else []), f"Next: {advice}"]
    if not report.stopped:
        lines.append(still_busy([report.rank]))
    return "\n".join(lines)


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
"""The context in which threads may be dry runs."""
