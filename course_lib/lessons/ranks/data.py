"""Shared parts of lesson 01's exercises: data, runs, and the most that a ring may send."""

import random
from collections.abc import Iterator, Sequence

from ...exercises import DTYPES, Case, Finding, Row, Trial, draw_world_size, dtype_name, only_calls, whole_numbers
from ...world import Call


def draw_ring_case(rng: random.Random, number: int) -> Case:
    """Draw a flat tensor for each rank, of a size that the world size divides."""
    world_size = draw_world_size(rng, number)
    numel, dtype, seed = world_size * rng.randint(2, 4), DTYPES[number % 3], rng.getrandbits(32)
    return Case(
        world_size=world_size,
        args=lambda rank: (whole_numbers(numel, seed=seed, rank=rank, dtype=dtype),),
        what=f"{numel} elements, {dtype_name(dtype)}",
    )


# Rules


def one_chunk_at_a_time(trial: Trial) -> Iterator[Finding]:
    """Require the reference's messages: world size − 1 chunks from every rank, each to its right neighbour."""
    expected, yours = ([_sent(calls) for calls in seen.calls] for seen in (trial.expected, trial.yours))
    wrong = [rank for rank, sent in enumerate(yours) if sent != expected[rank]]
    if wrong:
        rank = wrong[0]
        yield Finding(
            observed=f"rank {rank} sent {yours[rank]}; on a ring that passes one chunk at a time it sends "
            f"{expected[rank]}.",
            likely=_sent_elsewhere(trial),
            action="Compare with the table: how many messages, of what size, to which rank?",
            table=tuple(Row(rank=r, expected=expected[r], yours=yours[r]) for r in range(trial.world_size)),
        )


def _sent_elsewhere(trial: Trial) -> str:
    """Return a sentence about the first rank that sends past its right neighbour; empty if none does."""
    for rank, calls in enumerate(trial.yours.calls):
        right = (rank + 1) % trial.world_size
        if any(call.op == "send" and call.root != right for call in calls):
            return (
                f"Rank {rank} sends to others than rank {right}, its right neighbour. On a ring, data reaches the "
                "other ranks by being passed on, one rank at a time."
            )
    return ""


def _sent(calls: Sequence[Call]) -> str:
    """Return `3 × 4 elements to rank 1`, and so on for other sizes and other ranks; `nothing`."""
    messages = [(call.root, sum(call.numels)) for call in calls if call.op == "send"]
    return (
        ", ".join(f"{messages.count(m)} × {m[1]} elements to rank {m[0]}" for m in sorted(set(messages), key=str))
        or "nothing"
    )


RING_RULES = (only_calls("send", "recv"), one_chunk_at_a_time)
