"""What each rank sent: every collective and message of a run, its bytes counted by meaning.

Counted is what the meaning of a call costs on a ring of N members, whatever the backend at hand does (gloo's
reduce-scatter, say, is an all-reduce inside). B stands for the bytes of the whole: of the tensor that every member
has, or that they make or take apart together.

    all_reduce                    2 (N-1)/N B   to the next member of the ring
    reduce_scatter, all_gather      (N-1)/N B   to the next member
    broadcast, reduce               (N-1)/N B   to the next member: the ring's N-1 hops of B, shared out evenly,
                                                as each member's part depends on how far it stands from the root
    gather                                B/N   each member but the root, to the root
    scatter                               B/N   the root, to each other member
    all_to_all                     its pieces   to the member that each is for, its own left out
    send                                    B   to the receiver
    recv, barrier, new_group                0

An all-reduce is a reduce-scatter and then an all-gather (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
algorithms for clusters of workstations"; the ZeRO paper counts so too, in its section 7). Gather, scatter and
all-to-all are sends and receives, as in NCCL. Shares are kept as exact fractions; `sent_bytes` is rounded down, once,
after adding up.

A call does not tell which of its bytes are padding, but code that pads may: by setting the attribute `padding_numel`
on the whole tensor (the input of a reduce-scatter, the output of an all-gather) to the number of elements that stand
for nothing. torch's own FSDP2 pads and does not tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Protocol, TypeVar

import torch

_RING = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 1, "reduce": 1}
"""How often a ring carries (N-1)/N of the whole from each member to the next."""

OPS = (*_RING, "gather", "scatter", "all_to_all", "send", "recv", "barrier", "new_group")


class Line(Protocol):
    """A line of the learner's code; as text, where it stands."""

    @property
    def source(self) -> str:
        """The line's own text."""


@dataclass(frozen=True, kw_only=True)
class CommCall:
    """One rank's part in a collective, a message or a new group.

    Attributes:
        op: what it means, one of `OPS`.
        variant: the function of `torch.distributed` that does it, such as `all_gather_single`.
        rank: the rank whose part this is.
        ranks: the members of the group, by group rank.
        group_name: torch's name of the group.
        root: the rank of `src` or `dst`, where the op has one.
        dtype: of the tensors; None where there are none.
        total_bytes: bytes of the whole; of an all-to-all, of what this rank brings.
        padding_bytes: how many of them are known to be padding.
        piece_bytes: of an all-to-all, how much this rank has for each group rank.
        number: this rank's count of the variant in the group, from 1.
        line: the learner's line.
        issued, matched, done: when its rank made it, when every member had made theirs, and when its bytes had
            arrived, in seconds from the start of the run.
        waited_from: from here to `done`, its rank did nothing but wait for it; inf where it never did.
    """

    op: str
    variant: str
    rank: int
    ranks: tuple[int, ...]
    group_name: str
    root: int | None
    dtype: torch.dtype | None
    total_bytes: int
    padding_bytes: int
    piece_bytes: tuple[int, ...]
    number: int
    line: Line
    issued: float
    matched: float
    done: float
    waited_from: float

    @property
    def shares(self) -> dict[int, Fraction]:
        """Exact bytes that this rank sends, by the rank that gets them."""
        members = len(self.ranks)
        piece = Fraction(self.total_bytes, members)
        sent: dict[int, Fraction] = {}
        if self.op in _RING:
            sent = {self.ranks[(self.ranks.index(self.rank) + 1) % members]: _RING[self.op] * (members - 1) * piece}
        elif self.op == "gather":
            sent = {rank: piece for rank in self.ranks if rank == self.root}
        elif self.op == "scatter" and self.rank == self.root:
            sent = dict.fromkeys(self.ranks, piece)
        elif self.op == "all_to_all":
            sent = {rank: Fraction(size) for rank, size in zip(self.ranks, self.piece_bytes, strict=True)}
        elif self.op == "send":
            sent = {rank: Fraction(self.total_bytes) for rank in self.ranks if rank == self.root}
        return {rank: share for rank, share in sent.items() if rank != self.rank}

    @property
    def sent(self) -> Fraction:
        """Exact bytes that this rank sends."""
        return sum(self.shares.values(), Fraction())

    @property
    def sent_padding(self) -> Fraction:
        """How many of them are padding, which is taken to be spread evenly."""
        return self.sent * Fraction(self.padding_bytes, self.total_bytes) if self.padding_bytes else Fraction()

    @property
    def sent_bytes(self) -> int:
        return floor(self.sent)

    def __str__(self) -> str:
        return f"{self.op} of {self.total_bytes:,} bytes, {self.sent_bytes:,} sent ({self.line}: {self.line.source})"


@dataclass(frozen=True, kw_only=True)
class Communication:
    """What one rank sent in a run.

    Attributes:
        rank: which one.
        calls: the collectives, messages and new groups that it took part in, in their order.
    """

    rank: int
    calls: tuple[CommCall, ...]

    @property
    def sent_bytes(self) -> int:
        """Bytes sent, padding included."""
        return floor(sum((call.sent for call in self.calls), Fraction()))

    @property
    def sent_padding_bytes(self) -> int:
        """How many of `sent_bytes` are known to be padding."""
        return floor(sum((call.sent_padding for call in self.calls), Fraction()))

    @property
    def by_op(self) -> dict[str, int]:
        """Bytes sent, by op."""
        return _totals((call.op, call.sent) for call in self.calls)

    @property
    def by_line(self) -> dict[str, int]:
        """Bytes sent, by the learner's line: what an engine sends to set itself up stands apart from its steps."""
        return _totals((f"{call.line}: {call.line.source}", call.sent) for call in self.calls)

    @property
    def by_rank(self) -> dict[int, int]:
        """Bytes sent, by the rank that got them."""
        return _totals(share for call in self.calls for share in call.shares.items())

    def count(self, op: str) -> int:
        """How many calls mean `op`: `"all_gather"` counts each variant of it.

        Raises:
            ValueError: there is no such op.
        """
        if op not in OPS:
            raise ValueError(
                f"count({op!r}): there is no such op. Calls are counted by what they mean, whichever variant was "
                f"called: {', '.join(OPS)}."
            )
        return sum(call.op == op for call in self.calls)

    def __str__(self) -> str:
        lines = [f"rank {self.rank} sent {self.sent_bytes:,} bytes"]
        for op, sent in self.by_op.items():
            lines.append(f"  {op:<15} {self.count(op):>5} x {sent:>18,} bytes")
        return "\n".join(lines)

    __repr__ = __str__


def meaning(variant: str) -> str:
    """The op behind a function's name: `all_gather` of `all_gather_single_coalesced`."""
    return variant.removeprefix("monitored_").removesuffix("_coalesced").removesuffix("_single")


def matrix(ranks: Sequence[Communication]) -> tuple[tuple[int, ...], ...]:
    """Who sent how much to whom: `matrix(ranks)[a][b]` is how many bytes rank a sent to rank b."""
    return tuple(tuple(rank.by_rank.get(peer, 0) for peer in range(len(ranks))) for rank in ranks)


_Key = TypeVar("_Key")


def _totals(shares: Iterable[tuple[_Key, Fraction]]) -> dict[_Key, int]:
    totals: defaultdict[_Key, Fraction] = defaultdict(Fraction)
    for key, share in shares:
        totals[key] += share
    return {key: floor(total) for key, total in totals.items()}
