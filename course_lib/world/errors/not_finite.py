"""The first value that is not finite: a reduction gives it to every rank, and then nobody sees where it began."""

from collections.abc import Iterator, Sequence
from math import inf, isnan

from ...errors import who
from ..collectives.call import Call
from ..collectives.values import BEGINNING
from .rank_error import quoted


def not_finite_warnings(calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield a line on the first call to which ranks brought infinity or NaN, if there is one. `calls` are by rank.

    What a rank may have received does not count. Without `replay=True`, the line is only there if NaN stays to the end:
    a loss scaler recovers from it, and an attention mask contains infinity.
    """
    if not any(call.values for theirs in calls for call in theirs) and not any(map(_ends_with_nan, calls)):
        return
    first_of = {rank: call for rank, theirs in enumerate(calls) if (call := _first_of(theirs)) is not None}
    if not first_of:
        return
    rank, call = min(first_of.items(), key=lambda item: item[1].match)
    whose = [other for other, its_first in first_of.items() if its_first.match == call.match]
    name = next((one.name for one in call.values.brought if not one.finite), "") if call.values else ""
    where = "" if call.values else f" in the first {BEGINNING:,} elements of a tensor"
    yield (
        f"{who(whose, len(calls))} brought a value that is not finite (infinity or NaN) to {call.name}"
        f"{name and f', in {name},'} at {quoted(call.line)}{_step(call, calls[rank])}. No earlier call had one{where}. "
        f"Next: look at how {who(whose)} computed it. An attention mask contains such values on purpose, and a loss "
        "scaler expects them."
    )


def _ends_with_nan(theirs: Sequence[Call]) -> bool:
    """Return whether a rank's last call at one of its lines brought a NaN."""
    return any(isnan(call.least_finite) for call in {call.line: call for call in theirs}.values())


def _first_of(theirs: Sequence[Call]) -> Call | None:
    """Return a rank's first call to which it brought such a value; None if it may have received one before."""
    masks = {call.line for call in theirs} - {call.line for call in theirs if call.least_finite != inf}
    for call in theirs:
        if call.least_finite and (call.values is not None or call.line not in masks):
            return call
        if call.values is not None and not all(one.finite for one in call.values.received):
            return None
    return None


def _step(call: Call, theirs: Sequence[Call]) -> str:
    """Return the whole numbers that differ between a rank's calls at the line of `call`, such as its loop's counter."""
    here = [dict(one.values.counters) for one in theirs if one.line == call.line and one.values is not None]
    counters = call.values.counters if call.values is not None else ()
    shown = [f"{name} = {value}" for name, (value,) in counters if any(one.get(name) != (value,) for one in here)]
    return f", with {', '.join(shown)}" if shown else ""
