"""The communication of each rank: every collective and message of a run, with the bytes that its meaning costs.

The count is for a ring of N members, whatever the backend does (gloo's reduce-scatter, for example, is an all-reduce
inside). B is the size of the whole: the tensor that every member has, or that the members assemble or split together.

    all_reduce                    2 (N-1)/N B   to the next member of the ring
    all_reduce of sparse tensors        (N-1)   times the indices and values that this rank has, to the next member
    reduce_scatter, all_gather      (N-1)/N B   to the next member
    broadcast, reduce               (N-1)/N B   to the next member: the ring's N-1 hops of B, shared out evenly,
                                                because a member's share depends on its distance from the root
    gather                                B/N   each member except the root, to the root
    scatter                               B/N   the root, to each other member
    all_to_all                     its pieces   to the member that each piece is for; its own piece stays
    send                                    B   to the receiver
    recv, barrier, new_group,
    init_process_group                      0

An all-reduce is a reduce-scatter and then an all-gather (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
algorithms for clusters of workstations"; the ZeRO paper counts so too, in its section 7). Gather, scatter and
all-to-all are sends and receives, as in NCCL. Shares are exact fractions; `sent_bytes` is the sum, rounded down once.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, inf
from typing import Any

import torch

from .source_line import SourceLine

_RING = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 1, "reduce": 1}
"""How many times a ring carries (N-1)/N of the whole from each member to the next."""

OPS = (*_RING, "gather", "scatter", "all_to_all", "send", "recv", "barrier", "new_group", "init_process_group")


@dataclass(frozen=True, kw_only=True, eq=False)
class CommCall:
    """One rank's part in a collective, a message or a new group.

    Times are seconds from the start of the run, and inf for an event that has not happened.

    Attributes:
        variant: the function of `torch.distributed` that was called, such as `all_gather_single`.
        rank: the rank that made the call.
        ranks: global ranks of the members of the group, by group rank.
        group_name: torch's name of the group.
        line: the learner's line.
        root: global rank of `src` or `dst`, if the op has one.
        dtype: of the tensors; None if there are none.
        total_bytes: bytes of the whole; for an all-to-all, of this rank's input.
        piece_bytes: for an all-to-all, the bytes that this rank has for each group rank.
        number: this rank's count of the variant in the group, from 1.
        issued, matched, done: when the rank made the call, when every member had made it, and when its bytes had
            arrived.
        waited_from: from this moment to `done`, the rank only waited for the call.
    """

    variant: str
    rank: int
    ranks: tuple[int, ...]
    group_name: str
    line: SourceLine
    root: int | None = None
    dtype: torch.dtype | None = None
    total_bytes: int = 0
    piece_bytes: tuple[int, ...] = ()
    number: int = 1
    issued: float = inf
    matched: float = inf
    done: float = inf
    waited_from: float = inf

    @property
    def op(self) -> str:
        """The meaning of the call, one of `OPS`: `all_gather` for `all_gather_single_coalesced`."""
        return self.variant.removeprefix("monitored_").removesuffix("_coalesced").removesuffix("_single")

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
    def sent_bytes(self) -> int:
        return floor(self.sent)

    def __str__(self) -> str:
        return f"{self.op} of {self.total_bytes:,} bytes, {self.sent_bytes:,} sent ({self.line}: {self.line.source})"


@dataclass(frozen=True, kw_only=True)
class Communication:
    """The bytes that one rank sent in a run: its collectives, messages and new groups, in order."""

    rank: int
    calls: Sequence[CommCall]

    @property
    def sent_bytes(self) -> int:
        return floor(sum((call.sent for call in self.calls), Fraction()))

    @property
    def by_op(self) -> dict[str, int]:
        """Bytes sent, by op."""
        return _totals((call.op, call.sent) for call in self.calls)

    @property
    def by_rank(self) -> dict[int, int]:
        """Bytes sent, by receiving rank."""
        return _totals(share for call in self.calls for share in call.shares.items())

    def count(self, op: str) -> int:
        """Return the number of calls that mean `op`: `"all_gather"` counts all its variants.

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


def _totals(shares: Iterable[tuple[Any, Fraction]]) -> dict[Any, int]:
    totals: defaultdict[Any, Fraction] = defaultdict(Fraction)
    for key, share in shares:
        totals[key] += share
    return {key: floor(total) for key, total in totals.items()}
