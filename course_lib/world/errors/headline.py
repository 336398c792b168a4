"""The headline of a failed run's message, and what to do next, for each kind of fault."""

import re
from collections.abc import Callable, Iterable, Sequence

from ...errors import grouped, who
from ..collectives.call import Call
from ..collectives.fault import Fault, Kind, RankReport
from .advice import advice_for
from .exit_status import after_death
from .rank_error import hidden, quoted


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
    if len(same) < world_size and re.search(r'device_mesh\.py", line \d+, in get_group', report.raised.traceback):
        advice = (
            f"look whether the mesh has fewer ranks than the world: {who(same)} may not be in it. Make it of all "
            "ranks, or leave out what uses it where mesh.get_coordinate() is None."
        )
    lines = {quoted(r.raised.source_line) for r in reports if r.rank in same and r.raised and r.raised.source_line}
    if report.raised.type == "CheckpointException" and len(lines) > 1:
        return headline, (
            "the ranks are at different lines: call save, async_save and load of torch.distributed.checkpoint on every "
            "rank, in the same order. They call collectives, so an `if` around one of them mixes it up with the next."
        )
    if report.raised.type == "BdbQuit":
        advice = (
            "take `breakpoint()` (or pdb) out, and print what you want to know: the debugger ends a rank that has no "
            "keyboard."
        )
    if report.raised.type in ("ConnectionResetError", "EOFError") and "in _try_get_data" in report.raised.traceback:
        advice = advice_for("DataLoader worker (pid")  # torch asks too early whether the process has ended
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
        return (
            f"{gone} returned without the {partner} that matches the {first.name} of {who(sorted(calls))}",
            f"give every send its recv: {who(fault.ranks)} has to call {partner} with the other rank, or the "
            f"{first.variant} has to go, or to name a different rank or tag.",
        )
    return (
        f"{gone} returned without the {first.name} that {waiters}",
        f"every rank of the group must call {first.inside or first.variant}: look for an `if`, a `return`, an `except` "
        f"or a loop of a different length that keeps {gone} from it.{hidden([first])}{_buffers([first])}",
    )


def _refused(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    named = grouped({rank: fault.calls[rank].name for rank in fault.ranks})
    calls = " and ".join(f"the {name} of {who(ranks, world_size)}" for ranks, name in named)
    advice = "fix the arguments of that call. gloo, the backend of this world, takes fewer shapes and dtypes than NCCL."
    if "has to be contiguous" in fault.detail:
        advice = "pass tensor.contiguous(). Receive into a contiguous tensor, and copy what arrives to its place."
    return f"gloo refused {calls}: {fault.detail}", advice


def _deadlock(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    calls = fault.calls.values()
    messages = [call for call in calls if call.op in ("send", "recv")]
    advice = (
        "find an order of calls in which each rank's next partner is ready for it, and look for a call that some ranks "
        "left out."
    )
    if all(call.op == "new_group" for call in calls):
        advice = new_groups(calls)
    elif any(call.op == "new_group" for call in calls):
        advice = f"{SAME_CALLS} new_group is such a call, also on the ranks outside the group."
    elif len(messages) == len(calls):
        advice = f"{_ORDER} If that does not help, {_PARTNERS}"
        blocking = any(call.inside.startswith(call.op) for call in messages)
        if not blocking or len({(call.op, call.tag) for call in messages}) > 1:
            advice = f"{_PARTNERS} If they fit, {_ORDER}"
    elif messages:
        advice = (
            "look for a send or recv that is missing, that names a different rank or tag, or that comes after the "
            "collective: each message needs both. Or a rank that waits for a message left the collective out: look for "
            "an early `return` or an `if`."
        )
    elif len({call.group_name for call in calls}) > len({call.ranks for call in calls}):
        advice = "there are two groups with the same members: call on them in the same order on every rank."
    return f"deadlock: {who(fault.ranks, world_size)} wait for each other", advice


def _not_in_group(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    rank = fault.ranks[0]
    op = fault.calls[rank].variant
    return (
        f"rank {rank} of {world_size} called {op} on a group that it does not belong to",
        f"call {op} only on the members: `if dist.get_rank() in ranks:`, or pass the group that "
        f"{who(fault.ranks)} belongs to. (torch alone only warns, and skips the call.)",
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
        f"look for a loop or a wait that never ends on {busy}; if the work is only long, give the world more time: "
        "World(…, timeout=…).",
    )


def _interrupted(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    running = [report.rank for report in reports if report.state == "running"]
    if running and any(not report.missing.isdisjoint(running) for report in reports):
        return "the run was interrupted", f"if the ranks stood still, look at {who(running)}, which others waited for."
    return "the run was interrupted", "run the cell again; the world is ready for it."


def _mismatch(fault: Fault, reports: Sequence[RankReport], world_size: int) -> tuple[str, str]:
    shown = grouped({rank: _property(call, fault.detail) for rank, call in fault.calls.items()})
    sides = "; ".join(f"{who(ranks)}: {text}" for ranks, text in shown)
    calls = [fault.calls[rank] for rank in sorted(fault.calls)]
    if fault.detail == "collective":
        threads = " Give the calls of a thread a group of their own: dist.new_group()."
        advice = f"{same_calls(calls)}{threads if any(call.in_thread for call in calls) else ''}{hidden(calls)}"
        advice += _buffers(calls)
        return f"the ranks call different collectives at the same point: {sides}", advice
    if fault.detail == "split sizes":
        sides = f"{_uneven(fault)}; {sides}"
    message = calls[0].op in ("send", "recv")
    verb = "of the message" if message else f"in {calls[0].name}"
    sizes = fault.detail == "dtype" and len({call.numels for call in calls}) > 1
    members = fault.detail == "members"
    advice = new_groups(calls) if members else _ADVICE["number of elements" if sizes else fault.detail]
    if calls[0].inside == "backward" and "reduce_scatter" in calls[0].name:
        advice = (
            "a parameter got a gradient on some ranks only, as in a module that a rank skips. Let every rank use the "
            "module, also with zeros, or call set_reduce_scatter_unused_params(True) on the model (torch 2.13)."
        )
    if fault.detail == "number of elements" and any(call.inside in ("full_tensor", "redistribute") for call in calls):
        advice = (
            "if DTensor.from_local made this DTensor: its parts must be those of torch.chunk, and if these differ in "
            "size, from_local needs shape= and stride= of the whole. Without them, each rank takes all parts to be as "
            f"large as its own. If it did not: {advice}"
        )
    if fault.detail == "shape" and calls[0].op in ("all_gather", "gather", "scatter"):
        advice = (
            "give tensors of the same shape, also in the list: gloo, the backend of this world, refuses a list of "
            "different shapes. If the shapes are meant to differ, pass tensor.view(-1) on every rank, also in the list."
        )
    if calls[0].inside.endswith("object_list") and fault.detail in ("number of elements", "shape"):
        advice = "give lists of the same length on every rank."
    if message and (sizes or fault.detail == "number of elements"):
        advice = _MESSAGE_SIZES
    elif not message and len({quoted(call.line) for call in calls}) > 1:
        advice = f"{DIFFERENT_LINES}{advice}{_buffers(calls)}"
    elif fault.detail == "number of elements" and min(call.number for call in calls) > 1:
        advice = f"{advice}{_ENDED_EARLIER}"
    return f"the ranks disagree about the {fault.detail} {verb}: {sides}", advice


def _buffers(calls: Iterable[Call]) -> str:
    """Return a sentence on the forward of a wrapped model if a broadcast's line does not say that it calls one."""
    unnamed = (call.op == "broadcast" and not call.inside and "broadcast" not in call.line.source for call in calls)
    return _BUFFERS if any(unnamed) else ""


_BUFFERS = (
    " If the broadcast's line calls a model in DistributedDataParallel, its forward broadcasts buffers, such as "
    "BatchNorm's: evaluate `model.module` if not every rank does."
)


def same_calls(calls: Sequence[Call]) -> str:
    """Return the advice for ranks whose calls do not belong together. The backward pass of one line may make all."""
    one_backward = len({quoted(call.line) for call in calls}) == 1 and {call.inside for call in calls} == {"backward"}
    return f"{SAME_CALLS}{' Or the model differs: build the same one on every rank.' if one_backward else ''}"


SAME_CALLS = (
    "let every rank make the same calls, in the same order: look for an `if`, a `continue`, a `return` or an `except` "
    "that only some ranks meet, or for a loop that is longer on some ranks."
)
"""Advice for ranks whose calls do not belong together."""

DIFFERENT_LINES = (
    "the ranks call from different lines. If these calls are not meant for each other, look for one that only some "
    "ranks make. If they are: "
)
"""The beginning of the advice if calls that disagree may not belong together."""

_ENDED_EARLIER = " Or a loop ended earlier on a rank: decide its end by a value that all ranks have."

_MESSAGE_SIZES = (
    "compare the size that the receiver allocates, perhaps from an earlier message (a header), with what is sent. If "
    "these two are not meant for each other, compare the order and the tags of the messages."
)
"""Advice for a message whose tensors differ in size."""

_ORDER = (
    "let some ranks send and others receive first (for example the even ones), or call isend and irecv, and wait for "
    "all of them afterwards."
)
_PARTNERS = (
    "compare the peers, the tags and the number of messages (in a pipeline, of micro-batches): each send needs one "
    "recv."
)
"""Advice for messages that wait for each other."""


def new_groups(calls: Iterable[Call]) -> str:
    """Return the advice for ranks that do not agree about new groups, which a library function may have made."""
    makers = " and ".join(dict.fromkeys(call.inside or "new_group" for call in calls))
    if makers != "new_group":
        return (
            f"call {makers} on every rank, in the same order and with the same arguments (of a mesh, the same shape)."
        )
    return (
        "call new_group on every rank, also on those outside the group, for the same lists of ranks and in the same "
        "order."
    )


_ADVICE = {
    "number of elements": "find why the sizes differ: a different model, order or batch on a rank, a call that a rank "
    "skipped earlier (a gradient that is None), or a size that follows the data (torch.bincount needs minlength=). If "
    "they are meant to differ, pad the shorter tensors.",
    "shape": "give tensors of the same shape. torch alone would run this: it matches the elements in the order of "
    "memory, which mixes up those of a transposed tensor. If that order is meant, pass tensor.view(-1) on every rank.",
    "strides": "make the tensor contiguous on every rank before the call: tensor = tensor.contiguous(), or param.data "
    "= param.data.contiguous(). torch alone would run this: it matches the elements in the order of memory, which "
    "mixes up those of a transposed tensor.",
    "dtype": "look for a call that a rank skipped earlier (a gradient that is None). If there is none, convert the "
    "tensors to one dtype before the call, on every rank.",
    "layout": "pass dense tensors on every rank (tensor.to_dense()), or sparse ones on every rank.",
    "root": "src and dst must be the same number on every rank: that of the rank that sends, or collects. If they are, "
    "a rank skipped an earlier call (an `if`, a `continue`), so that the ranks are at different calls.",
    "reduction": "pass the same op= on every rank.",
    "split sizes": "what a rank sends to a peer must be what that peer expects from it: compare the two lists.",
}
"""The advice, by the property in which calls differ."""


def _property(call: Call, detail: str) -> str:
    if detail == "collective":
        return call.name
    if detail == "root":
        return f"root {call.root}"
    if detail == "reduction":
        return str(call.reduce_op)
    if detail == "layout":
        return str(call.layout).removeprefix("torch.")
    if detail == "members":
        return str(list(call.ranks))
    if detail == "strides":
        return f"{call.tensors} with {call.strides}"
    if detail == "split sizes" and call.splits is not None:
        return f"sends {list(call.splits[0])} elements, expects {list(call.splits[1])}"
    return f"{call.op} {call.tensors}" if call.op in ("send", "recv") else call.tensors


def _uneven(fault: Fault) -> str:
    """Return which rank of an all-to-all sends what its peer does not expect."""
    sender, receiver = fault.ranks[0], fault.ranks[-1]
    sends, expects = fault.calls[sender].splits, fault.calls[receiver].splits
    assert sends is not None and expects is not None
    sent = sends[0][fault.calls[sender].ranks.index(receiver)]
    expected = expects[1][fault.calls[receiver].ranks.index(sender)]
    whom = "itself, and" if sender == receiver else f"rank {receiver}, which"
    return f"rank {sender} sends {sent} element{'s' * (sent != 1)} to {whom} expects {expected}"


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
