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
    meaning,
    stand_ins,
    watched_steps,
)
from .collectives.call import Call
from .torch_hooks.patching import replaced


def communication(rank: int, calls: Iterable[Call]) -> Communication:
    """Return what `rank` sent."""
    return Communication(rank=rank, calls=tuple(_metered(rank, call) for call in calls))


def _metered(rank: int, call: Call) -> CommCall:
    pieces = call.splits[0] if call.splits is not None else ()
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
        issued=call.times.issued,
        matched=call.times.matched,
        done=call.times.done,
        waited_from=call.times.waited_from,
    )


def film(
    calls: Sequence[Sequence[Call]],
    memory: Sequence[MemoryReport] = (),
    *,
    ends: Sequence[tuple[str, SourceLine | None, str]],
    ranks: Sequence[int] | None = None,
    failure: str = "",
) -> Film:
    """Return the film of a run, for its replay. `ranks` are all ranks by default."""
    ranks = range(len(calls)) if ranks is None else ranks
    sent = [communication(rank, theirs).calls for rank, theirs in zip(ranks, calls, strict=True)]
    notes = [] if memory or failure else ["Bytes were not measured: the world was made with measure=False."]
    if not any(call.values for theirs in calls for call in theirs):
        notes.append("To see the values of small tensors too, make the world with World(…, replay=True).")
    return meter.film(ranks, calls, sent, memory, ends, failure, notes)


@contextmanager
def meters_informed() -> Iterator[None]:
    """Inform meters of modules, parameters, optimizers and arithmetic on their ranks."""
    with replaced(stand_ins()), watched_steps():
        yield
