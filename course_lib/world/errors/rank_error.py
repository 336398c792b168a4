"""`RankError`: the exception for a failed run, with functions that quote the learner's lines."""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch.distributed as dist

from ...errors import CourseError, wrapped
from ...meter import MemoryReport, Replay, SourceLine, film
from ..collectives.call import Call
from ..collectives.fault import RankReport

if TYPE_CHECKING:
    from ...plots import RunReport
    from .reported import About


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a backend keeps of the ranks that ran, in their order.

    Attributes:
        output: what each printed.
        calls: its collectives, messages and new groups, in order.
        spans: when it entered and left the function, in seconds from the start of the run; None for a rank that died.
        memory: what it held; None if that is not known, or not measured.
    """

    output: Sequence[str]
    calls: Sequence[Sequence[Call]]
    spans: Sequence[tuple[float, float] | None]
    memory: Sequence[MemoryReport | None]


class RankError(CourseError):
    """A run failed on at least one rank.

    Attributes:
        kind: raised, exited, mismatch, refused, absent, deadlock, not_in_group, died, timeout or interrupted.
        rank: the rank to look at first.
        ranks: a `RankReport` for each rank.
        output: what each rank had printed, by rank.
        calls: each rank's collectives, messages and new groups, by rank, in order.
        memory: each rank's memory when it failed or was stopped, by rank; None where it is unknown.
    """

    about: "About"
    _shown: ClassVar["RankError | None"] = None

    def __init__(self, message: str, *, kind: str, rank: int, ranks: Sequence[RankReport], kept: Kept) -> None:
        super().__init__(message)
        self.kind, self.rank, self.ranks, self._kept = kind, rank, tuple(ranks), kept
        self.output, self.calls, self.memory = tuple(kept.output), tuple(map(tuple, kept.calls)), tuple(kept.memory)

    @classmethod
    def last(cls) -> "RankError":
        """Return the failure that this kernel has shown last. `sys.last_value` would be any error.

        Raises:
            CourseError: this kernel has not shown any: it was restarted since.
        """
        if cls._shown is None:
            raise CourseError(
                "this kernel has shown no failed run since it started. Run the cell that failed, then this one. If "
                "your code caught the error, use that: error.report()."
            )
        return cls._shown

    @property
    def traceback(self) -> str:
        """Every rank's traceback, from the learner's first line on, with the library frames that follow."""
        return "\n".join(f"rank {r.rank}\n{r.raised.traceback}" for r in self.ranks if r.raised is not None)

    def replay(self) -> Replay:
        """Return the run as a film, up to the moment when it stopped: what every rank called, and where it stood."""
        ranks = [report.rank for report in self.ranks]
        ends = [_end(report) for report in self.ranks]
        return Replay(film(self.calls, [], ends, ranks, failure=str(self)))

    def report(self) -> "RunReport":
        """Return the run as one HTML page, up to the moment when it stopped, with the message at its top."""
        from .reported import report_of  # it imports this module

        return report_of(
            about=self.about,
            ranks=[report.rank for report in self.ranks],
            kept=self._kept,
            ends=[_end(report) for report in self.ranks],
            failure=str(self),
        )

    def __reduce__(self) -> tuple[object, ...]:
        return RankError.__new__, (RankError, str(self)), vars(self)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of this library's frames."""
        RankError._shown = copy(self)  # without its frames, which would keep the learner's tensors alive
        lines = [wrapped(f"{type(self).__name__}: {self}")]
        last = "    from course_lib import RankError; "
        if self.traceback:
            lines.append(f"\nLibrary frames are left out. To read them:\n{last}print(RankError.last().traceback)")
        if any(len(calls) > 1 for calls in self.calls):  # of a single call, the message shows all
            lines.append(f"\nTo step through the run up to here:\n{last}RankError.last().replay()")
        return lines


def _end(report: RankReport) -> tuple[str, SourceLine | None, str]:
    """Return the state in which a rank of a failed run ended, its line, and no result."""
    if report.raised is not None:
        first_line = str(report.raised).partition("\n")[0]
        return f"raised {first_line}", report.raised.source_line, ""
    if report.call is not None:
        return f"stopped in {report.call.name}", report.call.line, ""
    return {"running": "stopped"}.get(report.state, report.state), report.source_line, ""


class Interrupted(KeyboardInterrupt):
    """A run was interrupted; the text contains where each rank was."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of this library's frames."""
        return [wrapped(f"KeyboardInterrupt: {self}")]


def quoted(source_line: SourceLine | None) -> str:
    """Return a learner's line with its file, number, function and caller; empty for None."""
    if source_line is None:
        return ""
    function = source_line.function
    place = "at the top level" if function == "<module>" else f"in {function.strip('<>')}"
    text = f"{source_line}, {place}" + (f":  {source_line.source}" if source_line.source else "")
    return f"{text.removesuffix(',')}, called from {quoted(source_line.caller)}" if source_line.caller else text


def way_to(call: Call, others: Iterable[Call]) -> SourceLine:
    """Return the call's line. Its caller is the outermost line at which its way parts from the way to any of `others`:
    one function can lead to a call from several lines."""
    stacks = [other.stack for other in others]
    for depth, line in enumerate(call.stack[:-1]):
        for stack in stacks:
            there = stack[depth] if stack[:depth] == call.stack[:depth] and len(stack) > depth else line
            if there != line and (there.filename, there.function) == (line.filename, line.function):
                return call.line._replace(caller=line)
    return call.line


def hidden(calls: Iterable[Call]) -> str:
    """Return a sentence on the functions that make `calls` inside, and whose names do not say so; empty if none do."""
    names = dict.fromkeys(call.inside for call in calls if call.inside and not hasattr(dist, call.inside))
    return f" {' and '.join(names)} call{'s' if len(names) == 1 else ''} collectives." if names else ""
