"""The headline of a failed run's message, and what to do next, for each kind of fault."""

from collections.abc import Callable, Sequence

from ...errors import who
from ..collectives.fault import Fault, Kind, RankReport
from .advice import advice_for
from .exit_status import after_death
from .mismatch import NEW_GROUP, disagreement
from .rank_error import written


def headline(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    return _WRITERS[fault.kind](fault, reports, world_size)


def in_headline(fault: Fault, reports: Sequence[RankReport]) -> RankReport | None:
    """Return the rank whose exception is in the headline, if any."""
    if fault.kind == "exited":
        return next(report for report in reports if report.rank == fault.ranks[0])
    return next(report for report in reports if report.raised) if fault.kind == "raised" else None


def error_key(report: RankReport) -> tuple[str, str] | None:
    """Return what is equal of exceptions that are shown together; None if the rank raised none."""
    return (report.raised.type, report.raised.message) if report.raised else None


def _raised(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    report = in_headline(fault, reports)
    assert report is not None and report.raised is not None
    same = [r.rank for r in reports if error_key(r) == error_key(report)]
    if report.raised.type == "NoNumbers":
        return f"the dry run of {who(same)} of {world_size}: {report.raised.message}", advice_for(report.raised.message)
    all_of = "" if len(same) == world_size > 1 else f" of {world_size}"
    headline = f"{who(same, world_size)}{all_of} raised {report.raised}"
    advice = "find the cause, in that line or before it, and run the cell again."
    if report.raised.source_line is None:
        advice = "no line of yours raised this. Look at what your code returned or passed on, and run the cell again."
    if report.raised.unfinished is not None:
        advice = f"look at both lines: the {report.raised.unfinished.type} came first, and led to the second."
    return headline, advice_for(report.raised.message) or advice


def _exited(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    report = in_headline(fault, reports)
    assert report is not None
    same = [r.rank for r in reports if error_key(r) == error_key(report)]
    leavers = who(same, world_size) if len(same) == world_size else f"{who(same)} of {world_size}"
    code = report.raised.message if report.raised else ""
    return (
        f"{leavers} ended with sys.exit({code})",
        "use `return` to end a rank's work, on every rank at the same point."
        if code == "0"
        else "find out why that line ends the rank. Every code except 0 reports a failure.",
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
    since = max((report.waited for report in waiting if not report.missing.isdisjoint(running)), default=0.0)
    them = "it" if len(running) == 1 else "them"
    patience = f"; others had waited for {them} for {since:.1f} s" if since else ""
    return (
        f"{busy} had not finished{patience}",
        f"look for a loop that never ends on {busy}; if the work is only long, give the world more time: "
        "World(…, timeout=…).",
    )


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
