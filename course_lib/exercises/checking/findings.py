"""What a check tells: a `Verdict` with its `Finding`s. Plain data; the same result always has the same text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "failed", "error", "unattempted"]

SHAPES = {"passed": "✓", "failed": "✗", "error": "!", "unattempted": "○"}
"""A mark for each status that needs no colour."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One rank of a finding's table: what was expected there, and what the solution gave, as short texts."""

    rank: int
    expected: str
    yours: str

    @property
    def differs(self) -> bool:
        return self.expected != self.yours


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        observed: what was seen, on which rank.
        likely: what probably led to it; empty where nothing is known.
        action: one next step.
        table: expected beside yours, a row for each rank; empty where there is nothing to compare.
        traceback: of everything that was raised, library frames included; empty where nothing was.
    """

    observed: str
    action: str
    likely: str = ""
    table: tuple[Row, ...] = ()
    traceback: str = ""

    def __str__(self) -> str:
        lines = [self.observed, *textwrap.indent("\n".join(self._table_lines()), "  ").splitlines()]
        lines += [f"Likely: {self.likely}"] if self.likely else []
        return "\n".join([*lines, f"Next: {self.action}"])

    def _table_lines(self) -> Iterator[str]:
        if not self.table:
            return
        width = max(len("expected"), *(len(row.expected) for row in self.table))
        yield f"  rank  {'expected':<{width}}  yours"
        for row in self.table:
            yield f"{'✗' if row.differs else ' '} {row.rank:<4}  {row.expected:<{width}}  {row.yours}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """What came of a check.

    Attributes:
        exercise: its name.
        status: passed, failed, error (it could not be judged: it raised, or it did not end) or unattempted.
        findings: what is wrong with the first case that failed.
        mistake: the id of the known mistake that behaves just like the solution.
        cases_tried: how many cases were tried, the one that failed included.
        case_count: how many there are.
        seed: what they were drawn from: `rerun(seed)` draws them again.
        case: the case that failed, in a few words.
        output: what the solution printed there, by rank; in the first case, if none failed.
    """

    exercise: str
    status: Status
    seed: int
    findings: tuple[Finding, ...] = ()
    mistake: str | None = None
    cases_tried: int = 0
    case_count: int = 0
    case: str = ""
    output: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Which cases were tried, and with which seed."""
        if self.status == "unattempted":
            return "This is the cell as it came."
        if self.status == "passed":
            return f"All {self.cases_tried} cases agree with the reference (seed {self.seed})."
        if not self.case_count:
            return "It was not run."
        if not self.case:
            return f"{self.cases_tried} of {self.case_count} cases were tried."
        return f"Case {self.cases_tried} of {self.case_count}: {self.case} (seed {self.seed})."

    def __repr__(self) -> str:
        lines = [f"{SHAPES[self.status]} {self.exercise}: {self.status}", self.headline]
        for number, finding in enumerate(self.findings, 1):
            label = f"{number}. " if len(self.findings) > 1 else ""
            lines.append(label + textwrap.indent(str(finding), " " * len(label)).lstrip())
        return "\n".join(lines)
