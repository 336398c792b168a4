"""Warnings of a run that went through: what is legal, and yet very likely wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..collectives.call import Call
from ..learner_code import SourceLine
from .rank_error import quoted, who


def warnings_of(calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield a line for each of the learner's lines whose calls nobody waited for. `calls` are those of each rank."""
    open_handles: dict[SourceLine, list[tuple[int, Call]]] = {}
    for rank, theirs in enumerate(calls):
        for call in theirs:
            if call.times.open_handle:
                open_handles.setdefault(call.source_line, []).append((rank, call))
    for line, dropped in open_handles.items():
        ranks, first = sorted({rank for rank, _ in dropped}), dropped[0][1]
        more = sum(rank == ranks[0] for rank, _ in dropped) - 1
        yield (
            f"{who(ranks, len(calls))} never waited for {first.name}{f' and {more} more' * (more > 0)} at "
            f"{quoted(line)}. Without the wait, the tensor may still be on its way when you use it. Next: keep what "
            "the call returns, and call wait() on it before you use the tensor."
        )
