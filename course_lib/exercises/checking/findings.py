"""The result of a check: a `Verdict` with its `Finding`s. Plain data; equal results have equal texts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["passed", "failed", "error", "unattempted"]

SHAPES = {"passed": "✓", "failed": "✗", "error": "!", "unattempted": "○"}
"""A mark for each status that does not depend on colour."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One rank of a finding's table: the expected and the given result, as short texts. Without ranks, it is None.

    `within` says that `expected` is a limit, such as "at most 3", and that the result is within it.
    """

    rank: int | None
    expected: str
    yours: str
    within: bool = False

    @property
    def differs(self) -> bool:
        return not self.within and self.expected != self.yours


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One observation that a solution is wrong.

    Attributes:
        observed: what was seen, on which rank.
        likely: the probable cause; empty if none is known.
        perhaps: a guess at the cause; empty if there is none.
        action: one next step.
        table: expected and given results, a row for each rank; empty if there is nothing to compare.
        traceback: of the exception, with library frames; empty if nothing was raised.
        technical: whether the next step only makes the solution run. Every other one is a hint, for those who ask.
    """

    observed: str
    action: str
    likely: str = ""
    perhaps: str = ""
    table: tuple[Row, ...] = ()
    traceback: str = ""
    technical: bool = False

    @property
    def causes(self) -> dict[str, str]:
        """The possible cause, by how certain it is."""
        return {label: text for label, text in (("Likely", self.likely), ("Perhaps", self.perhaps)) if text}

    def __str__(self) -> str:
        return self.text(hints=True)

    def text(self, *, hints: bool) -> str:
        """Return the finding as text; without `hints`, only with a next step that is `technical`."""
        lines = [self.observed, *textwrap.indent("\n".join(self._table_lines()), "  ").splitlines()]
        lines += [f"{label}: {text}" for label, text in self.causes.items()]
        return "\n".join([*lines, *([f"Next: {self.action}"] if hints or self.technical else [])])

    def _table_lines(self) -> Iterator[str]:
        if not self.table:
            return
        width = max(len("expected"), *(len(row.expected) for row in self.table))
        yield f"  rank  {'expected':<{width}}  yours"[6 * (self.table[0].rank is None) :]
        for row in self.table:
            rank = "" if row.rank is None else f"{row.rank:<4}  "
            yield f"{'✗' if row.differs else ' '} {rank}{row.expected:<{width}}  {row.yours}"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a solution: the sum over all cases and ranks, including the calls that the exercise itself makes.

    `seconds` is CPU time, as a multiple of the reference's.
    """

    calls: int
    sent_bytes: int
    seconds: float = 1.0

    def against(self, reference: Cost) -> str:
        """Return a comparison with the reference, in a sentence; empty if there is nothing to say."""
        counts = (
            ("Calls in the check", self.calls, reference.calls),
            ("Bytes sent", self.sent_bytes, reference.sent_bytes),
        )
        facts = [f"{what}: {yours:,} (the reference: {right:,})." for what, yours, right in counts if yours or right]
        facts += [f"CPU time: {self.seconds:.1f} times the reference's."] if not 0.5 < self.seconds < 2 else []
        return " ".join(facts)


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """The result of a check.

    Attributes:
        exercise: its name.
        status: passed, failed, error (it could not be judged: it raised, or it did not end) or unattempted.
        findings: what is wrong with `case`.
        mistake: the id of the known mistake that behaves like the solution.
        cases_tried: the number of cases tried, including the first that failed.
        case_count: the number of all cases.
        seed: the seed of the cases: `check(solution, seed=seed)` draws them again.
        case: the smallest case found that fails, in a few words.
        ranks: the number of ranks of this case; 0 without a world.
        drawn: from which this case can be drawn again; see `Case.drawn`.
        cost: after a pass: what the solution takes.
        reference_cost: after a pass: what the reference takes.
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
    ranks: int = 0
    drawn: tuple[Any, ...] = ()
    cost: Cost | None = None
    reference_cost: Cost | None = None
    output: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """A sentence about the cases that were tried."""
        if self.status == "unattempted":
            return "You have not changed this cell yet."
        if self.status == "passed":
            compared = self.cost.against(self.reference_cost) if self.cost and self.reference_cost else ""
            agree = "The case agrees" if self.cases_tried == 1 else f"All {self.cases_tried} cases agree"
            return f"{agree} with the reference. {compared}".strip()
        if not self.case_count:
            return "It was not run."
        if not self.case:
            return f"{self.cases_tried} of {self.case_count} cases were tried."
        return f"Failing case: {self.case}."

    @property
    def next_step(self) -> str:
        """The next step for each finding, for those who ask: it says where to go, and gives something away."""
        return "\n".join(finding.action for finding in self.findings)

    @property
    def has_hints(self) -> bool:
        """Whether a next step is a hint."""
        return not all(finding.technical for finding in self.findings)

    def __repr__(self) -> str:
        return self.text()

    def text(self, *, hints: bool = False, ask: str = "print(verdict.next_step)") -> str:
        """Return the verdict as text: with the next steps that are hints, or with how to `ask` for them."""
        lines = [f"{SHAPES[self.status]} {self.exercise}: {self.status}", self.headline]
        for number, finding in enumerate(self.findings, 1):
            label = f"{number}. " if len(self.findings) > 1 else ""
            lines.append(label + textwrap.indent(finding.text(hints=hints), " " * len(label)).lstrip())
        lines += [f"For the next step: {ask}"] if self.has_hints and not hints else []
        return "\n".join(lines)
