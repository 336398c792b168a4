"""The bridge to the meter: the calls, computing time and memory of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from .. import meter
from ..meter import (
    CommCall,
    Communication,
    Film,
    MemoryReport,
    SourceLine,
    Timeline,
    meaning,
    stand_ins,
    watched_steps,
)
from .collectives.call import Call
from .torch_hooks.patching import replaced


def communication(rank: int, calls: Iterable[Call], started: float) -> Communication:
    """Return what `rank` sent. Times count from `started`."""
    return Communication(rank=rank, calls=tuple(_metered(rank, call, started) for call in calls))


def timeline(communication: Communication, entered: float, left: float, started: float) -> Timeline:
    """Return what the rank did from when it `entered` the function to when it `left`."""
    return Timeline(rank=communication.rank, start=entered - started, end=left - started, calls=communication.calls)


def _metered(rank: int, call: Call, started: float) -> CommCall:
    times, pieces = call.times, call.splits[0] if call.splits is not None else ()
    return CommCall(
        op=meaning(call.op),
        variant=call.op,
        rank=rank,
        ranks=call.ranks,
        group_name=call.group_name,
        root=call.root,
        dtype=call.dtype,
        total_bytes=call.total_bytes,
        padding_bytes=call.padding_bytes,
        piece_bytes=tuple(numel * call.dtype.itemsize for numel in pieces if call.dtype is not None),
        number=call.number,
        line=call.source_line,
        issued=times.issued - started,
        matched=times.matched - started,
        done=times.done - started,
        waited_from=times.waited_from - started,
    )


def film(
    calls: Sequence[Sequence[Call]],
    started: float,
    memory: Sequence[MemoryReport] = (),
    *,
    ends: Sequence[tuple[str, SourceLine | None, str]],
    ranks: Sequence[int] | None = None,
    failure: str = "",
) -> Film:
    """Return the film of a run, for its replay. `ranks` are all ranks by default."""
    ranks = range(len(calls)) if ranks is None else ranks
    sent = [communication(rank, theirs, started).calls for rank, theirs in zip(ranks, calls, strict=True)]
    notes = [] if memory or failure else ["Bytes were not measured: the world was made with measure=False."]
    if not any(call.values for theirs in calls for call in theirs):
        notes.append("To see the values of small tensors too, make the world with World(…, replay=True).")
    return meter.film(ranks, calls, sent, memory, ends, failure, notes)


@contextmanager
def meters_informed() -> Iterator[None]:
    """Inform meters of modules, parameters, optimizers and arithmetic on their ranks."""
    with replaced(stand_ins()), watched_steps():
        yield
