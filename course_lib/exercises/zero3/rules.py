"""What must hold besides equal results: what is not needed is let go of."""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import Finding, Row
from ..observe import Observation, Trial
from ..rules import Rule


def lets_go(at: str, *, slack: int = 64) -> Rule:
    """At the mark `at`, no rank holds more bytes than with the reference, whatever they are for, give or take `slack`.

    What a rank holds besides may differ by a few bytes from run to run, so only the table tells how many they are. Of
    ranks that do not come to the mark, nothing is asked. The finding names who holds what was a parameter's: where
    the exercise has let the meter see, at an earlier mark, that it was. To find out takes long.
    """

    def rule(trial: Trial) -> Iterator[Finding]:
        yours, expected = _held(trial.yours, at), _held(trial.expected, at)
        over = [rank for rank in yours if yours[rank] > expected[rank] + slack]
        if not over:
            return
        rank = over[0]
        still = sorted({holder for held in trial.yours.memory[rank].marks[at].still_held for holder in held.holders})
        holders = f" What was a parameter's is still held by {'; '.join(still)}." if still else ""
        yield Finding(
            observed=f"{trial.who([rank])} holds more {at} than it needs.{holders}",
            action="Look for what still refers to the whole tensor: a variable, an attribute, a view, a function that "
            "closes over it. Memory is freed with the last of them.",
            table=tuple(
                Row(
                    rank=r,
                    expected=f"at most {expected[r]:,} bytes" if r in over else f"{yours[r]:,} bytes",
                    yours=f"{yours[r]:,} bytes",
                )
                for r in yours
            ),
        )

    return rule


def _held(observation: Observation, at: str) -> dict[int, int]:
    marks = {rank: report.marks.get(at) for rank, report in enumerate(observation.memory)}
    return {rank: snapshot.current_bytes for rank, snapshot in marks.items() if snapshot is not None}
