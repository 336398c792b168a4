"""What must hold besides equal results: no rank sends more than it has to."""

from __future__ import annotations

from collections.abc import Iterator

from ...world import communication
from ..checking.findings import Finding, Row
from ..checking.observe import Observation, Trial
from ..checking.rules import Rule


def sends_no_more(instead: str, *, slack: float = 0) -> Rule:
    """No rank sends more bytes than with the reference, by meaning.

    Args:
        instead: which calls suffice, for the learner.
        slack: how much more another right solution may send, as a share of what the reference does.
    """

    def rule(trial: Trial) -> Iterator[Finding]:
        expected, yours = _sent(trial.expected), _sent(trial.yours)
        over = [rank for rank, nbytes in enumerate(yours) if nbytes > expected[rank] * (1 + slack)]
        if over:
            rank = over[0]
            yield Finding(
                observed=f"{trial.who([rank])} sent {yours[rank]:,} bytes; {expected[rank]:,} suffice.",
                action=f"Compare your calls with what has to travel: {instead}.",
                table=tuple(
                    Row(rank=rank, expected=f"{expected[rank]:,} bytes", yours=f"{yours[rank]:,} bytes")
                    for rank in range(trial.world_size)
                ),
            )

    return rule


def _sent(observation: Observation) -> list[int]:
    return [communication(rank, calls, 0).sent_bytes for rank, calls in enumerate(observation.calls)]
