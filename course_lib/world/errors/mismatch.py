"""Mismatches: which ranks disagree, about what, and how to fix it."""

from ...errors import grouped, who
from ..collectives.call import Call
from ..collectives.fault import Fault


def disagreement(fault: Fault) -> tuple[str, str]:
    """Return the headline and the advice for calls that do not match."""
    shown = grouped({rank: _property(call, fault.detail) for rank, call in fault.calls.items()})
    sides = "; ".join(f"{who(ranks)}: {text}" for ranks, text in shown)
    calls = list(fault.calls.values())
    if fault.detail == "collective":
        return (
            f"the ranks call different collectives at the same point: {sides}",
            "let every rank make the same calls, in the same order.",
        )
    if fault.detail == "split sizes":
        sides = f"{_uneven(fault)}; {sides}"
    message = calls[0].op in ("send", "recv")
    verb = "of the message" if message else f"in {calls[0].name}"
    advice = ADVICE[fault.detail]
    if not message and len({call.line for call in calls}) > 1:
        advice = (
            "the ranks call from different lines. If these calls are not meant for each other, look for one that only "
            f"some ranks make. If they are: {advice}"
        )
    return f"the ranks disagree about the {fault.detail} {verb}: {sides}", advice


NEW_GROUP = (
    "call new_group on every rank, also on those outside the group, for the same lists of ranks and in the same order."
)
"""Advice for ranks that do not agree about new groups."""

ADVICE = {
    "number of elements": "give tensors of the same size on every rank, in the same order; pad the shorter ones if "
    "need be.",
    "shape": "give tensors of the same shape: the elements are matched in the order of memory, without a look at it.",
    "dtype": "convert the tensors to one dtype before the call, on every rank.",
    "layout": "pass dense tensors on every rank (tensor.to_dense()), or sparse ones on every rank.",
    "root": "src and dst must be the same number on every rank; only the rank with that number holds the source.",
    "reduction": "pass the same op= on every rank.",
    "members": NEW_GROUP,
    "split sizes": "what a rank sends to a peer must be what that peer expects from it: compare the two lists.",
}
"""What to do about a property in which calls differ."""


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
    if detail == "split sizes" and call.splits is not None:
        return f"sends {list(call.splits[0])}, expects {list(call.splits[1])}"
    return f"{call.op} {call.tensors}" if call.op in ("send", "recv") else call.tensors


def _uneven(fault: Fault) -> str:
    """Return which rank of an all-to-all sends what its peer does not expect."""
    sender, receiver = fault.ranks[0], fault.ranks[-1]
    sends, expects = fault.calls[sender].splits, fault.calls[receiver].splits
    assert sends is not None and expects is not None
    sent = sends[0][fault.calls[sender].ranks.index(receiver)]
    expected = expects[1][fault.calls[receiver].ranks.index(sender)]
    if sender == receiver:
        return f"rank {sender} sends {sent} to itself, and expects {expected}"
    return f"rank {sender} sends {sent} to rank {receiver}, which expects {expected}"
