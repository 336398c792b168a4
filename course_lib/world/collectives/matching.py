"""Matching: the calls of one collective or message, and the pending call that a rank's call belongs to."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from .call import Call


@dataclass(eq=False, kw_only=True)
class PendingCall:
    """The calls of one collective or one message, one for each member."""

    members: frozenset[int]  # the ranks that must call
    number: int = 0  # its number in the run, from 1
    broken: bool = False  # the calls can never proceed: they do not match, or a member has died
    calls: dict[int, Call] = field(default_factory=dict)  # those that have arrived, by rank
    proceed: list[Callable[[], object]] = field(default_factory=list)  # let each of them enter the backend

    @property
    def missing(self) -> frozenset[int]:
        return self.members - self.calls.keys()

    @property
    def open(self) -> bool:
        """Return whether ranks must still wait: members are missing, or the calls can never proceed."""
        return self.broken or bool(self.missing)

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
    elif one.variant != other.variant:
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
            checks += (
                ("number of elements", one.numels, other.numels),
                ("shape", _have_order(one), _have_order(other)),
                ("strides", one.orders, other.orders),
            )
    return next((name for name, mine, theirs in checks if mine != theirs), "")


def _have_order(call: Call) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors with more than one element: only these can be in a different order."""
    return tuple(shape for shape, numel in zip(call.shapes, call.numels, strict=True) if numel > 1)


def uneven_splits(calls: dict[int, Call]) -> tuple[int, ...]:
    """Return the first (sender, receiver) of an all-to-all whose sizes disagree; empty if all agree."""
    for sender, call in sorted(calls.items()):  # whichever rank called first
        for position, receiver in enumerate(call.ranks if call.splits else ()):
            theirs = calls[receiver]
            assert call.splits is not None and theirs.splits is not None
            if call.splits[0][position] != theirs.splits[1][call.ranks.index(sender)]:
                return (sender, receiver)
    return ()


class Matching:
    """The pending calls of a run. The last member's call removes a pending call from here."""

    def __init__(self) -> None:
        self._open: dict[Hashable, PendingCall] = {}
        self._broken: list[PendingCall] = []
        self._groups: dict[str, PendingCall] = {}  # the last call that made each group
        self._ordinals: Counter[tuple[int, Hashable]] = Counter()
        self._numbers = count(1)

    @property
    def open(self) -> list[PendingCall]:
        """Return the pending calls, including those that can never proceed."""
        return [*self._open.values(), *self._broken]

    def mark_broken(self, pending: PendingCall) -> None:
        """Keep `pending` open forever: its calls cannot proceed."""
        pending.broken = True
        if pending not in self._broken:
            self._broken.append(pending)

    def pending(self, rank: int, call: Call) -> PendingCall:
        """Return the pending call that `call` of `rank` belongs to."""
        if call.op == "init_process_group":
            self._groups.clear()  # their names are used again
            return self._found(rank, (call.op, call.number), frozenset(call.ranks))
        if call.op == "new_group":
            made = self._groups.get(call.group_name)
            if made is not None and made.members != frozenset(call.ranks):
                # A group of other members has this name: the ranks disagree. If it is complete, its members go on: each
                # waits in C++ for the others.
                return made if made.open else replace(made, calls=dict(made.calls))
            pending = self._found(rank, ("new_group", call.group_name), frozenset(call.ranks))
            self._groups[call.group_name] = pending
            return pending
        if call.op not in ("send", "recv"):
            # The k-th call of each member in the group
            return self._found(rank, (call.group_name, self._next(rank, call.group_name)), frozenset(call.ranks))
        return self._message(rank, call)

    def _message(self, rank: int, call: Call) -> PendingCall:
        """Return the pending call of a send and its recv: the k-th of each for one (sender, receiver, tag)."""
        assert call.root is not None
        pair = (rank, call.root) if call.op == "send" else (call.root, rank)
        line = (call.group_name, *pair, call.tag)
        return self._found(rank, (*line, self._next(rank, (call.op, *line))), frozenset(pair))

    def _found(self, rank: int, key: Hashable, members: frozenset[int]) -> PendingCall:
        if key not in self._open:
            self._open[key] = PendingCall(members=members, number=next(self._numbers))
        pending = self._open[key]
        if pending.missing == {rank}:
            del self._open[key]
        return pending

    def _next(self, rank: int, line: Hashable) -> int:
        self._ordinals[rank, line] += 1
        return self._ordinals[rank, line]
