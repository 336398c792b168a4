"""What must hold besides equal results: gradients take no more memory than they have to, at any moment."""

from __future__ import annotations

from collections.abc import Iterator

from ..checking.findings import Finding, Row
from ..checking.observe import Observation, Trial

HELD = ("gradients", "communication", "other")
"""Where bytes of gradients can be: in a parameter's `.grad`, on their way, or wherever a solution has put them."""


def keeps_no_more(trial: Trial) -> Iterator[Finding]:
    """At no mark of the exercise's `trial` does a rank hold more bytes of gradients than with the reference."""
    for label in trial.expected.memory[0].marks:
        expected, yours = _held(trial.expected, label), _held(trial.yours, label)
        over = [rank for rank, nbytes in enumerate(yours) if nbytes > expected[rank]]
        if over:
            rank = over[0]
            yield Finding(
                observed=f"{label}, {trial.who([rank])} holds {yours[rank]:,} bytes of gradients and buffers; "
                f"{expected[rank]:,} suffice.",
                action="Find what is not needed at that moment, and let go of it: memory is freed when no variable, "
                "attribute, list or view refers to it any more.",
                table=tuple(
                    Row(
                        rank=r,
                        expected=f"at most {expected[r]:,} bytes" if r in over else f"{yours[r]:,} bytes",
                        yours=f"{yours[r]:,} bytes",
                    )
                    for r in range(len(yours))
                ),
            )
            return


def _held(observation: Observation, label: str) -> list[int]:
    return [
        sum(memory.marks[label].by_category[category] for category in HELD) if label in memory.marks else 0
        for memory in observation.memory
    ]
