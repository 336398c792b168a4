"""`PendingCall`: the calls of one collective or message that have arrived, and the members that are missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .call import Call


@dataclass(eq=False, kw_only=True)
class PendingCall:
    """The calls of one collective or one message, one for each member.

    Attributes:
        members: the ranks that must call.
        any_member: one of them is enough, for a recv from any rank.
        broken: the calls can never proceed: they do not match, or a member has died.
        calls: the calls that have arrived, by rank.
        proceed: lets each of these calls enter the backend.
    """

    members: frozenset[int]
    any_member: bool = False
    broken: bool = False
    calls: dict[int, Call] = field(default_factory=dict)
    proceed: list[Callable[[], object]] = field(default_factory=list)

    @property
    def missing(self) -> frozenset[int]:
        """Return the members that have not called."""
        return self.members - self.calls.keys()

    @property
    def open(self) -> bool:
        """Return whether ranks must still wait: members are missing, or the calls can never proceed."""
        return self.broken or bool(self.missing)

    def hopeless_without(self, ranks: set[int]) -> bool:
        """Return whether the calls can never proceed unless one of `ranks` calls."""
        if self.any_member:
            return bool(self.missing) and self.missing <= ranks
        return not self.missing.isdisjoint(ranks)

    def disagreement(self, call: Call) -> str:
        """Return the property in which `call` differs from a call that has arrived; empty if it matches."""
        return next(filter(None, (difference(theirs, call) for theirs in self.calls.values())), "")


def difference(one: Call, other: Call) -> str:
    """Return the first property in which two calls of one pending call disagree; empty if they agree."""
    if {one.op, other.op} == {"send", "recv"}:
        checks: tuple[tuple[str, Any, Any], ...] = (
            ("dtype", one.dtype, other.dtype),
            ("number of elements", one.numels, other.numels),
        )
    elif one.op != other.op:
        return "collective"
    else:
        checks = (
            ("members", one.ranks, other.ranks),
            ("root", one.root, other.root),
            ("reduction", one.reduce_op, other.reduce_op),
            ("dtype", one.dtype, other.dtype),
            ("layout", one.layout, other.layout),
        )
        if one.splits is None:
            checks += (("number of elements", one.numels, other.numels), ("shape", one.shapes, other.shapes))
    return next((name for name, mine, theirs in checks if mine != theirs), "")


def uneven_splits(calls: dict[int, Call]) -> tuple[int, ...]:
    """Return the first (sender, receiver) of an all-to-all whose sizes disagree; empty if all agree."""
    for sender, call in calls.items():
        for position, receiver in enumerate(call.ranks if call.splits else ()):
            theirs = calls[receiver]
            assert call.splits is not None and theirs.splits is not None
            if call.splits[0][position] != theirs.splits[1][call.ranks.index(sender)]:
                return (sender, receiver)
    return ()
