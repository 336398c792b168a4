"""Matching: find the pending call that a rank's call belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from .call import Call
from .pending import PendingCall


class Matching:
    """The pending calls of a run. The last member's call removes a pending call from here."""

    def __init__(self) -> None:
        self._open: dict[Hashable, PendingCall] = {}
        self._broken: list[PendingCall] = []
        self._ordinals: Counter[tuple[int, Hashable]] = Counter()

    @property
    def open(self) -> list[PendingCall]:
        """Return the pending calls, including those that can never proceed."""
        return [*self._open.values(), *self._broken]

    def mark_broken(self, pending: PendingCall) -> None:
        """Keep `pending` open forever: its calls cannot proceed."""
        pending.broken = True
        if pending not in self._broken:
            self._broken.append(pending)

    def pending(self, rank: int, call: Call, tag: int) -> PendingCall:
        """Return the pending call that `call` of `rank` belongs to; `tag` is a message's tag."""
        if call.op == "new_group":
            return self._found(rank, ("new_group", call.group_name), frozenset(call.ranks))
        if call.op not in ("send", "recv"):
            return self._collective(rank, call)
        return self._message_from_any(rank, call, tag) if call.root is None else self._message(rank, call, tag)

    def _collective(self, rank: int, call: Call) -> PendingCall:
        """Return the pending call of a collective: the k-th call of each member in the group."""
        return self._found(rank, (call.group_name, self._next(rank, call.group_name)), frozenset(call.ranks))

    def _message(self, rank: int, call: Call, tag: int) -> PendingCall:
        """Return the pending call of a send and its recv: the k-th of each for one (sender, receiver, tag)."""
        assert call.root is not None
        pair = (rank, call.root) if call.op == "send" else (call.root, rank)
        line = (call.group_name, *pair, tag)
        expected = ("any", call.group_name, pair[1], tag)
        key = (*line, self._next(rank, (call.op, *line)))
        if call.op == "send" and key not in self._open and expected in self._open:
            pending = self._open.pop(expected)
            pending.members, pending.any_member = frozenset(pair), False
            self._next(pair[1], ("recv", *line))
            return pending
        return self._found(rank, key, frozenset(pair))

    def _message_from_any(self, rank: int, call: Call, tag: int) -> PendingCall:
        """Return the pending call of a recv without a source: it matches a waiting send, or the first one to arrive."""
        for sender in call.ranks:
            line = (call.group_name, sender, rank, tag)
            key = (*line, self._ordinals[rank, ("recv", *line)] + 1)
            if key in self._open:
                self._next(rank, ("recv", *line))
                return self._open.pop(key)
        pending = PendingCall(members=frozenset(call.ranks), any_member=True)
        self._open["any", call.group_name, rank, tag] = pending
        return pending

    def _found(self, rank: int, key: Hashable, members: frozenset[int]) -> PendingCall:
        pending = self._open.setdefault(key, PendingCall(members=members))
        if pending.missing == {rank}:
            del self._open[key]
        return pending

    def _next(self, rank: int, line: Hashable) -> int:
        self._ordinals[rank, line] += 1
        return self._ordinals[rank, line]
