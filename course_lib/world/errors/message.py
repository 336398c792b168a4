"""The message of a failed run: what happened, the values, why, and what to do next."""

from collections.abc import Callable, Iterator, Sequence

from ..collectives.call import Call
from ..collectives.fault import Fault, Kind, RankReport
from .exit_status import after_death
from .histories import compared
from .mismatch import NEW_GROUP, disagreement
from .rank_error import Interrupted, RankError, advice_for, grouped, quoted, who, written
from .warnings import shared_variables
from .went_past import left_out


def error_of(
    fault: Fault,
    reports: Sequence[RankReport],
    timeout: float,
    output: Sequence[str],
    calls: Sequence[Sequence[Call]],
    replaced: Sequence[int] = (),
    world_size: int | None = None,
    shared: Sequence[str] = (),
) -> RankError | Interrupted:
    """Return the exception to raise for a failed run.

    The `replaced` ranks have a new process now. `world_size` is by default that of `reports`; a dry run reports one
    rank of many. `shared` are variables of modules that the run has set, and that all ranks share.
    """
    world_size = world_size or len(reports)
    headline, advice = _WRITERS[fault.kind](fault, reports, world_size)
    if fault.kind == "timeout":
        headline = f"the run was stopped after its time limit of {timeout:g} s: {headline}"
    lines = [headline, *_where(fault, reports, world_size), *_handled(reports)]
    if fault.kind in ("absent", "mismatch", "deadlock"):
        difference = compared(fault, calls)
        lines += [f"  {difference.line}"] if difference.line else []
        advice = difference.advice or advice
        unfinished = _unfinished(fault, reports)
        if unfinished:
            lines += unfinished
            advice = (
                "look at that exception first: a rank that raises takes another way than its peers. If that is meant: "
                + advice
            )
    raiser = _in_headline(fault, reports)
    if fault.kind == "raised" and raiser is not None and any(report.call for report in reports):
        waited = "The other ranks were stopped: they would have waited for it forever."
        advice = f"{advice} {left_out(raiser, reports, calls) or waited}"
    lines.append(f"Next: {advice}")
    notes = [*_notes(reports, replaced), *(f"Note: {line}" for line in shared_variables(shared, world_size))]
    message = "\n".join([*lines, *notes])
    if fault.kind == "interrupted":
        return Interrupted(message)
    return RankError(message, kind=fault.kind, rank=fault.ranks[0], ranks=reports, output=output, calls=calls)


def _notes(reports: Sequence[RankReport], replaced: Sequence[int]) -> Iterator[str]:
    """Yield notes on the ranks that did not stop, and on those that have a new process."""
    busy = [report.rank for report in reports if not report.stopped]
    if busy:
        yield (
            f"Note: {who(busy)} could not be interrupted (a long call outside Python, or a loop that catches every "
            "exception). What it still does is ignored, until it ends by itself."
        )
    if replaced:
        others = "" if len(replaced) == len(reports) else "; the others kept theirs"
        yield (
            f"Note: {who(replaced, len(reports))} got a new process. What earlier runs had left in the old one, in "
            f"variables of modules for example, is lost{others}."
        )


def _raised(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    report = _in_headline(fault, reports)
    assert report is not None and report.raised is not None
    same = [r.rank for r in reports if _key(r) == _key(report)]
    if report.raised.type == "NoNumbers":
        return f"the dry run of {who(same)} of {world_size}: {report.raised.message}", advice_for(report.raised.message)
    all_of = "" if len(same) == world_size > 1 else f" of {world_size}"
    headline = f"{who(same, world_size)}{all_of} raised {report.raised}"
    advice = "find the cause, in that line or before it, and run the cell again."
    if report.raised.unfinished is not None:
        advice = f"look at both lines: the {report.raised.unfinished.type} came first, and led to the second."
    return headline, advice_for(report.raised.message) or advice


def _in_headline(fault: Fault, reports: Sequence[RankReport]) -> RankReport | None:
    """Return the rank whose exception is in the headline, if any."""
    if fault.kind == "exited":
        return next(report for report in reports if report.rank == fault.ranks[0])
    return next(report for report in reports if report.raised) if fault.kind == "raised" else None


def _key(report: RankReport) -> tuple[str, str] | None:
    return (report.raised.type, report.raised.message) if report.raised else None


def _exited(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    report = _in_headline(fault, reports)
    assert report is not None
    same = [r.rank for r in reports if _key(r) == _key(report)]
    leavers = who(same, world_size) if len(same) == world_size else f"{who(same)} of {world_size}"
    consequence = ", and its peers would be left without it" if len(same) == 1 < world_size else ""
    return (
        f"{leavers} left through sys.exit({report.raised.message if report.raised else ''}){consequence}",
        "use `return` to end a rank's work, on every rank at the same point.",
    )


def _absent(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    calls = fault.calls
    first = next(iter(calls.values()))
    waiters = f"{who(sorted(calls))} wait{'s' if len(calls) == 1 else ''} in"
    others = set(first.ranks) - calls.keys() if first.op not in ("send", "recv") else fault.ranks
    gone = who([report.rank for report in reports if report.rank in others and report.state == "returned"])
    if first.op in ("send", "recv"):
        partner = "recv" if first.op == "send" else "send"
        missing = who(fault.ranks) if len(fault.ranks) == 1 else f"one of {who(fault.ranks)}"  # from any rank
        return (
            f"{gone} returned without the {partner} that matches the {first.name} of {who(sorted(calls))}",
            f"give every send its recv: {missing} has to call {partner} with the other rank, or the {first.variant} "
            "has to go.",
        )
    order = "make the call at that line" if written(first) == "call" else f"call {first.variant}"
    return (
        f"{gone} returned without the {first.name} that {waiters}",
        f"every rank of the group must {order}: look for an `if` or a `return` that keeps {gone} from it.",
    )


def _mismatch(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    return disagreement(fault)


def _refused(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    return (
        f"gloo refused the {fault.calls[fault.ranks[0]].name} of {who(fault.ranks, world_size)}: {fault.detail}",
        "fix the arguments of that call. gloo, the backend of this world, takes fewer shapes and dtypes than NCCL.",
    )


def _deadlock(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    calls = list(fault.calls.values())
    ops = {call.op for call in calls}
    headline = f"deadlock: {who(fault.ranks, world_size)} wait for each other"
    if "new_group" in ops:
        return headline, NEW_GROUP
    if ops <= {"send", "recv"} and all(written(call) == "call" for call in calls):
        return headline, (
            "torch makes these calls inside the lines above: compare what each rank passes to them, such as the number "
            "of micro-batches."
        )
    if ops in ({"send"}, {"recv"}):
        return headline, (
            f"let some ranks {'recv' if ops == {'send'} else 'send'} first (for example the even ones), "
            f"or use {'isend' if ops == {'send'} else 'irecv'} and wait for it afterwards."
        )
    if ops == {"send", "recv"} and len({call.tag for call in calls}) > 1:
        return headline, "give a send and its recv the same tag, or find an order in which each finds its partner."
    if len({call.group_name for call in calls}) > len({call.ranks for call in calls}):
        return headline, "there are two groups with the same members: call on them in the same order on every rank."
    if ops & {"send", "recv"} and ops - {"send", "recv"}:
        return headline, (
            "look for a send or recv that is missing, or that comes after the collective: each message needs both."
        )
    return headline, "find an order of calls in which each rank's next partner is ready for it."


def _not_in_group(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    rank = fault.ranks[0]
    op = fault.calls[rank].variant
    return (
        f"rank {rank} of {world_size} called {op} on a group that it does not belong to",
        f"call {op} only on the members: `if dist.get_rank() in ranks:`. (torch alone would skip the call without "
        "a word of what is wrong.)",
    )


def _died(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    return f"{who(fault.ranks, world_size)} of {world_size} died: {fault.detail}", after_death(fault.detail)


def _timeout(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    running = [report.rank for report in reports if report.state == "running"]
    waiting = [report for report in reports if report.state == "waiting"]
    busy = who(running or [report.rank for report in waiting], world_size)
    imported = [one.source_line.importing for one in reports if one.rank in running and one.source_line]
    more_time = "if the work is only long, give the world more time: World(…, timeout=…)."
    since = max((report.waited for report in waiting if not report.missing.isdisjoint(running)), default=0.0)
    them = "it" if len(running) == 1 else "them"
    patience = f"; others had waited for {them} for {since:.1f} s" if since else ""
    if imported and all(imported):
        return (
            f"{busy} had not finished importing {imported[0]}{patience}",
            "run the cell again: a first import is slow on a busy machine, and a second one is fast. Or give the world "
            "more time: World(…, timeout=…).",
        )
    return f"{busy} had not finished{patience}", f"look for a loop that never ends on {busy}; {more_time}"


def _interrupted(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    return "the run was interrupted", "run the cell again; the world is ready for it."


_WRITERS: dict[Kind, Callable[[Fault, Sequence[RankReport], int], tuple[str, str]]] = {
    "raised": _raised,
    "exited": _exited,
    "absent": _absent,
    "mismatch": _mismatch,
    "refused": _refused,
    "deadlock": _deadlock,
    "not_in_group": _not_in_group,
    "died": _died,
    "timeout": _timeout,
    "interrupted": _interrupted,
}


def _where(fault: Fault, reports: Sequence[RankReport], world_size: int) -> list[str]:
    """Return a line for each activity: first that of the ranks in the headline, then of those that wait for them."""
    headline = _in_headline(fault, reports)
    named = _key(headline) if headline is not None else None
    shown = grouped({report.rank: _activity(report, fault, named, world_size) for report in reports})
    waits = dict.fromkeys(fault.ranks if headline is None else [headline.rank], 0)
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


def _activity(report: RankReport, fault: Fault, named: tuple[str, str] | None, world_size: int) -> str:
    if report.raised is not None:
        raised = "raised" if _key(report) == named else f"raised {str(report.raised).splitlines()[0].rstrip('.')}"
        return (
            f"{raised} at {quoted(report.raised.source_line)}"
            if report.raised.source_line
            else f"{raised} in library code"
        )
    at_fault = fault.calls.get(report.rank)
    arrived = at_fault if fault.kind in ("mismatch", "refused") else None  # the rank may have gone on to another call
    call = arrived or report.call or at_fault
    if call is not None:
        called = arrived or not call.ranks or report.call is None
        verb = "called" if called else "died in" if report.state == "died" else "waited in"
        return f"{verb} {call.name}{_awaited(report, fault, world_size)} at {quoted(call.line)}"
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
