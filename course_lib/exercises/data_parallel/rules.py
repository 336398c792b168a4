"""What must hold besides equal results: all-reduces start when they can, and not later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...world import Call
from ..checking.findings import Finding, Row
from ..checking.observe import Trial
from ..checking.rules import Rule


def starts_in_time(moments: str, action: str) -> Rule:
    """At each message that the trial sends or receives, a rank has started as many all-reduces as the reference.

    Args:
        moments: when that is, for the learner.
        action: one next step.
    """

    def rule(trial: Trial) -> Iterator[Finding]:
        expected, yours = ([_started(calls) for calls in seen.calls] for seen in (trial.expected, trial.yours))
        pairs = list(zip(yours, expected, strict=True))
        late = [
            rank
            for rank, counts in enumerate(pairs)
            if any(mine < theirs for mine, theirs in zip(*counts, strict=True))
        ]
        if late:
            yield Finding(
                observed=f"{trial.who(late)} started all-reduces later than could be. The table has how many were "
                f"started {moments}.",
                action=action,
                table=tuple(
                    Row(rank=rank, expected=_listed(theirs), yours=_listed(mine))
                    for rank, (mine, theirs) in enumerate(pairs)
                ),
            )

    return rule


def _started(calls: Sequence[Call]) -> list[int]:
    """How many all-reduces come before each message."""
    ops = [call.op for call in calls]
    return [ops[:place].count("all_reduce") for place, op in enumerate(ops) if op in ("send", "recv")]


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts)) or "-"
