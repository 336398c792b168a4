"""The page of a run: what a run, or a failed run up to the moment when it stopped, gives to `plots` to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import torch

from ...meter import Communication, Replay, Timeline, film, slowest
from ..collectives.call import Call
from ..rank_threads.printing import folded
from .layout import layout
from .rank_error import Kept

if TYPE_CHECKING:
    from ...plots import RunReport

MOST_EVENTS = 8000  # calls in a replay on a page: each takes about 100 bytes


@dataclass(frozen=True, kw_only=True)
class About:
    """The program that ran, and where and when it ran.

    Attributes:
        program: the name of the function or of the program.
        backend: such as "processes".
        world_size: the number of ranks.
        began: when the run began.
        note: a sentence about the machine, such as that its GPUs are pretended.
    """

    program: str
    backend: str
    world_size: int
    began: datetime
    note: str = ""
    torch_version: str = torch.__version__


def report_of(
    *,
    about: About,
    ranks: Sequence[int],
    kept: Kept,
    ends: Sequence[tuple[str, Any, str]],
    results: Sequence[Any] = (),
    warnings: Sequence[str] = (),
    failure: str = "",
) -> RunReport:
    """Return the page of a run. `ranks` are those that ran; the other sequences have an entry for each of them.

    `ends` are those of a film. `failure` is the message of a failed run; its calls that did not complete sent nothing.
    """
    from ...plots import RunReport  # imported here, because most runs are not plotted

    calls = dict(zip(ranks, kept.calls, strict=True))
    timelines = list(_timelines(calls, kept.spans))
    completed = {call.match for theirs in calls.values() for call in theirs if call.matched < inf}
    made = {
        rank: [call for call in theirs if call.matched < inf or call.match in completed or not failure]
        for rank, theirs in calls.items()  # of a rank that died, only its peers know which calls completed
    }
    latest = _latest(calls)
    memory = [one for one in kept.memory if one is not None]
    replay = None
    if failure or any(call.values for theirs in calls.values() for call in theirs):
        replay = Replay(film(list(latest.values()), [] if failure else memory, ends, ranks, failure=failure))
    return RunReport(
        about=about,
        failure=failure,
        warnings=tuple(warnings),
        ends={rank: _end(*end) for rank, end in zip(ranks, ends, strict=True)},
        memory={one.rank: one for one in memory},
        comm={rank: Communication(rank=rank, calls=theirs) for rank, theirs in made.items()},
        timelines={timeline.rank: timeline for timeline in timelines},
        slowest=slowest(timelines),
        layout=layout(list(calls.values()), results).rows if len(calls) > 1 else (),
        replay=replay,
        call_counts=(max(map(len, latest.values())), max(map(len, calls.values()))),
        output=folded(dict(zip(ranks, kept.output, strict=True))),
    )


def _end(state: str, line: Any, _: str) -> str:
    return state if line is None else f"{state} at {line}"


def _timelines(calls: Mapping[int, Sequence[Call]], spans: Sequence[tuple[float, float] | None]) -> Iterator[Timeline]:
    """Yield each rank's timeline, but of no rank that died. A rank that did not stop ends with the last event."""
    moments = [moment for span in spans if span is not None for moment in span]
    moments += [moment for theirs in calls.values() for call in theirs for moment in (call.issued, call.done)]
    last = max(filter(isfinite, moments), default=0.0)
    for (rank, theirs), span in zip(calls.items(), spans, strict=True):
        if span is not None:
            start, end = span
            yield Timeline(rank=rank, start=min(start, last), end=min(end, last), calls=theirs)


def _latest(calls: Mapping[int, Sequence[Call]]) -> dict[int, list[Call]]:
    """Return the latest calls that a replay has room for. Calls that belong together stay together."""
    numbered = {rank: [(call.match or at, call) for at, call in enumerate(theirs, 1)] for rank, theirs in calls.items()}
    counts, first = Counter(number for theirs in numbered.values() for number, _ in theirs), 0
    room = MOST_EVENTS
    for number in sorted(counts, reverse=True):
        room -= counts[number]
        if room < 0:
            first = number
            break
    return {rank: [call for number, call in theirs if number > first] for rank, theirs in numbered.items()}
