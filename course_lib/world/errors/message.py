"""The message of a failed run: what happened, the values, why, and what to do next."""

from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf

from ...errors import grouped, who
from ..collectives.call import Call
from ..collectives.fault import Fault, RankReport
from .headline import DIFFERENT_LINES, SAME_CALLS, headline, in_headline, new_groups, same_calls
from .histories import counts, first_difference, groups_made, own_in_join
from .rank_error import Interrupted, Kept, RankError, quoted, way_to
from .warnings import shared_variables


def error_of(
    fault: Fault,
    reports: Sequence[RankReport],
    timeout: float,
    kept: Kept,
    replaced: Sequence[int] = (),
    world_size: int | None = None,
    shared: Sequence[str] = (),
) -> RankError | Interrupted:
    """Return the exception to raise for a failed run.

    The `replaced` ranks have a new process now. `world_size` is by default that of `reports`; a dry run reports one
    rank of many. `shared` are variables of modules that the run has set, and that all ranks share.
    """
    world_size = world_size or len(reports)
    first, advice = headline(fault, reports, world_size)
    under_way = list[str]()
    if fault.kind == "timeout":
        first = f"the run was stopped after its time limit of {timeout:g} s: {first}"
        under_way = _under_way(reports, kept.calls)
        if under_way:
            advice = f"look for a call that only some ranks make: a longer loop, or an `if`. If there is none: {advice}"
    in_threads = list(_in_threads(reports))
    lines = [first, *_where(fault, reports, world_size, kept.calls), *_handled(reports), *under_way, *in_threads]
    if fault.kind in ("absent", "mismatch", "deadlock"):
        shown, advice = _from_histories(fault, reports, kept.calls, advice)
        lines += shown
    raiser = in_headline(fault, reports)
    raised = {report.rank for report in reports if report.raised is not None}
    if (
        fault.kind == "raised"
        and raiser is not None
        and any(not report.missing.isdisjoint(raised) for report in reports if report.raised is None)
    ):
        advice = f"{advice} The other ranks were stopped: they would have waited for it forever."
    if in_threads:
        advice = f"look at the exception in a thread first: Python ends only the thread. If that is meant: {advice}"
    notes = [*_notes(reports, replaced), *shared_variables(shared, world_size)]
    message = "\n".join([*lines, f"Next: {advice}", *(f"Note: {note}" for note in notes)])
    if fault.kind == "interrupted":
        return Interrupted(message)
    return RankError(message, kind=fault.kind, rank=fault.ranks[0], ranks=reports, kept=kept)


def _from_histories(
    fault: Fault, reports: Sequence[RankReport], calls: Sequence[Sequence[Call]], advice: str
) -> tuple[list[str], str]:
    """Return what the ranks' calls show, and better advice, if they give any."""
    difference, unfinished = first_difference(fault, calls), _unfinished(fault, reports)
    if difference and fault.kind == "mismatch" and fault.detail != "collective":
        advice = f"{SAME_CALLS} If the lines may differ: {advice.removeprefix(DIFFERENT_LINES)}"
    elif difference:
        advice = same_calls([*fault.calls.values()]) if fault.kind == "mismatch" else SAME_CALLS
    scatters = any(call.inside == "backward" and "reduce_scatter" in call.variant for call in fault.calls.values())
    if scatters and not difference and (fault.kind == "absent" or fault.detail == "collective"):
        advice += (
            " In backward, FSDP makes no reduce_scatter for frozen parameters: compare `requires_grad` on the ranks."
        )
    ended, own = own_in_join(fault, calls)
    if own:
        texts = grouped({call.rank: f"called {call.name} at {quoted(call.line)}" for call in own})
        callers = " and ".join(f"{who(ranks)} {text}" for ranks, text in texts)
        others = who([call.rank for call in ended])
        difference = f"{others} had reached the end of the `with` at {ended[0].line} when {callers}"
        advice = (
            "call no collective of your own inside this `with`. A rank that has used up its batches repeats only the "
            "calls of the models and optimizers that join. Call yours after the block, on every rank."
        )
    groups = [*groups_made(fault, calls)]
    if groups:
        advice = new_groups(fault.calls.values())
    if unfinished:
        advice = (
            "look at that exception first: a rank that raises takes another way than its peers. If that is meant: "
            + advice
        )
    shown = [difference] if difference else [*counts(fault, calls), *groups]
    return [*(f"  {line}" for line in shown), *unfinished], advice


def _notes(reports: Sequence[RankReport], replaced: Sequence[int]) -> Iterator[str]:
    """Yield notes on the ranks that did not stop, and on those that have a new process."""
    busy = [report.rank for report in reports if not report.stopped]
    if busy:
        still = "it still does is ignored, until it ends by itself"
        if len(busy) > 1:
            still = "they still do is ignored, until they end by themselves"
        yield (
            f"{who(busy)} could not be interrupted (a long call outside Python, or a loop that catches every "
            f"exception). What {still}."
        )
    if replaced:
        others = "" if len(replaced) == len(reports) else "; the others kept theirs"
        yield (
            f"{who(replaced, len(reports))} got a new process. What earlier runs had left in the old one, in "
            f"variables of modules for example, is lost{others}."
        )


def _where(fault: Fault, reports: Sequence[RankReport], world_size: int, calls: Sequence[Sequence[Call]]) -> list[str]:
    """Return a line for each activity: first that of the ranks in the headline, then of those that wait for them."""
    raiser = in_headline(fault, reports)
    named = str(raiser.raised) if raiser is not None else ""
    made = [*chain.from_iterable(calls)]
    shown = grouped({report.rank: _activity(report, fault, named, world_size, made) for report in reports})
    waits = dict.fromkeys(fault.ranks if raiser is None else [raiser.rank], 0)
    for number in range(1, len(reports)):
        waits |= {r.rank: number for r in reports if r.rank not in waits and not r.missing.isdisjoint(waits)}
    shown.sort(key=lambda item: min(waits.get(rank, len(reports)) for rank in item[0]))
    return [f"  {who(ranks)} {text}" for ranks, text in shown]


def _handled(reports: Sequence[RankReport]) -> Iterator[str]:
    """Yield the exceptions during which ranks raised the ones in the message."""
    earlier = {report.rank: report.raised.unfinished for report in reports if report.raised is not None}
    texts = {rank: f"{one} at {quoted(one.source_line)}" for rank, one in earlier.items() if one is not None}
    for ranks, text in grouped(texts):
        yield f"  {who(ranks)} raised that while handling {text}"


def _under_way(reports: Sequence[RankReport], calls: Sequence[Sequence[Call]]) -> list[str]:
    """Return a line for the first collective of each running rank that members left out: C++ may wait for it."""
    texts = {}
    for report, own in zip(reports, calls, strict=False):
        collectives = (call for call in own if call.op not in ("send", "recv") and call.match and call.matched == inf)
        if report.state == "running" and (call := next(collectives, None)):
            missing = [peer for peer in call.ranks if all(one.match != call.match for one in calls[peer])]
            if missing:
                texts[report.rank] = f"called {call.name} at {call.line}, and {who(missing)} did not"
    return [f"  {who(ranks)} {text}" for ranks, text in grouped(texts)]


def _in_threads(reports: Sequence[RankReport]) -> Iterator[str]:
    """Yield the exceptions that ended threads of ranks."""
    raised = {report.rank: report.raised_in_thread for report in reports if report.raised_in_thread is not None}
    for ranks, text in grouped({rank: f"{one} at {quoted(one.source_line)}" for rank, one in raised.items()}):
        yield f"  a thread of {who(ranks)} raised {text}"


def _activity(report: RankReport, fault: Fault, named: str, world_size: int, made: Sequence[Call]) -> str:
    if report.raised is not None:
        first, named_first = (text.partition("\n")[0] for text in (str(report.raised), named))
        raised = f"raised {report.raised.type if first == named_first else first.rstrip('.')}"
        if str(report.raised) == named:
            raised = "raised"
        return (
            f"{raised} at {quoted(report.raised.source_line)}"
            if report.raised.source_line
            else f"{raised} in library code"
        )
    at_fault = fault.calls.get(report.rank)
    arrived = at_fault if fault.kind in ("mismatch", "refused") else None  # the rank may have gone on to another call
    call = arrived or report.call or at_fault
    if fault.kind == "absent" and call is not None and at_fault is not None and at_fault.line == call.line:
        call = at_fault  # a library's line starts more than one: the headline names the first that is missing
    if call is not None:
        called = arrived or not call.ranks or report.call is None
        verb = "called" if called else "died in" if report.state == "died" else "waited in"
        way = way_to(call, [*fault.calls.values(), *(one for one in made if one.line == call.line)])
        thread = " in a thread" if call.in_thread else ""
        return f"{verb} {call.name}{thread}{_awaited(report, fault, world_size)} at {quoted(way)}"
    if report.state in ("returned", "died"):
        return report.state if report.source_line is None else f"{report.state} at {quoted(report.source_line)}"
    return f"at {quoted(report.source_line)}" if report.source_line else "still in library code"


def _awaited(report: RankReport, fault: Fault, world_size: int) -> str:
    """Return the ranks that a rank waited for, where neither the headline nor the name of the call says it."""
    call = report.call
    if call is None or call.op in ("send", "recv") or not 1 < len(call.ranks) < world_size:
        return ""
    said = fault.kind != "deadlock" and report.rank in fault.calls
    return "" if said or not report.missing else f" for {who(sorted(report.missing))},"


def _unfinished(fault: Fault, reports: Sequence[RankReport]) -> list[str]:
    """Return the exceptions that the ranks' calls came from; nothing if all members called from the same one."""
    calls = fault.calls | {report.rank: report.call for report in reports if report.call is not None}
    raised = {rank: call.unfinished for rank, call in calls.items() if call.unfinished is not None}
    texts = {rank: f"{one} at {quoted(one.source_line)}" for rank, one in raised.items()}
    members = {rank for call in fault.calls.values() for rank in call.ranks}
    if members <= raised.keys() and len({(raised[rank].type, raised[rank].source_line) for rank in members}) == 1:
        return []
    return [
        f"  That call of {who(ranks)} was made in an `except`, a `finally` or a `with`, after {text}"
        for ranks, text in grouped(texts)
    ]
