"""What must hold besides equal results: how much ranks send, and to whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...world import Call
from ..checking.findings import Finding, Row
from ..checking.observe import Trial
from ..checking.rules import only_calls


def one_chunk_at_a_time(trial: Trial) -> Iterator[Finding]:
    """Every rank sends what the reference sends: world size − 1 chunks, each to its right neighbour."""
    expected, yours = ([_sent(calls) for calls in seen.calls] for seen in (trial.expected, trial.yours))
    wrong = [rank for rank, sent in enumerate(yours) if sent != expected[rank]]
    if wrong:
        rank = wrong[0]
        yield Finding(
            observed=f"rank {rank} sent {yours[rank]}; on a ring that passes one chunk at a time it sends "
            f"{expected[rank]}.",
            likely=_sent_elsewhere(trial),
            action="Compare with the table: how many messages, of what size, to whom?",
            table=tuple(Row(rank=r, expected=expected[r], yours=yours[r]) for r in range(trial.world_size)),
        )


def _sent_elsewhere(trial: Trial) -> str:
    """What is to be said where a rank sends past its right neighbour; nothing where none does."""
    for rank, calls in enumerate(trial.yours.calls):
        right = (rank + 1) % trial.world_size
        if any(call.op == "send" and call.root != right for call in calls):
            return (
                f"Rank {rank} sends to others than rank {right}, its right neighbour. On a ring data reaches the "
                "others by being passed on, one rank at a time."
            )
    return ""


def _sent(calls: Sequence[Call]) -> str:
    """`3 × 4 elements to rank 1`, and so on for other sizes and other ranks; `nothing`."""
    messages = [(call.root, sum(call.numels)) for call in calls if call.op == "send"]
    return (
        ", ".join(f"{messages.count(m)} × {m[1]} elements to rank {m[0]}" for m in sorted(set(messages), key=str))
        or "nothing"
    )


def sends_no_more(trial: Trial) -> Iterator[Finding]:
    """No rank sends more elements than the reference does, give or take one of padding in each message of a ring."""
    expected, yours = ([_sent_numel(calls) for calls in seen.calls] for seen in (trial.expected, trial.yours))
    spare = 2 * (trial.world_size - 1)
    wrong = [rank for rank, numel in enumerate(yours) if numel > expected[rank] + spare]
    if wrong:
        rank = wrong[0]
        yield Finding(
            observed=f"rank {rank} sent {yours[rank]} elements; a reduce-scatter and an all-gather on a ring send "
            f"{expected[rank]}.",
            action="Reduce-scatter first, so that only sums are gathered, one chunk from each rank.",
            table=tuple(
                Row(rank=r, expected=f"{expected[r]} elements", yours=f"{yours[r]} elements")
                for r in range(trial.world_size)
            ),
        )


def _sent_numel(calls: Sequence[Call]) -> int:
    return sum(sum(call.numels) for call in calls if call.op == "send")


RING_RULES = (only_calls("send", "recv"), one_chunk_at_a_time)
ALL_REDUCE_RULES = (only_calls("send", "recv"), sends_no_more)
