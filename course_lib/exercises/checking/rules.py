"""Rules: requirements besides equal results, on the calls that a solution makes and the bytes that it holds.

A rule is a function of a `Trial` that yields a `Finding` for each violation. The functions here make the rules of most
exercises; a lesson file may define its own. What a rule asks for stands in the docstring of the exercise's cell, by
name and number.

    rules=(only_calls("send", "recv"), at_most("send", 1))

Rules compare calls by their meaning, `Call.op`: `all_gather_single` and an all-gather of DTensor are all-gathers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ...errors import grouped
from ...meter import Communication, Snapshot
from .findings import Finding, Row
from .observe import Observation, Trial

Rule = Callable[[Trial], Iterator[Finding]]


def only_calls(*ops: str) -> Rule:
    """Return a rule that allows only the collectives and messages `ops`: "send", "all_gather", ...

    Calls that the reference's run contains as well may be the exercise's own, and are allowed.
    """

    def rule(trial: Trial) -> Iterator[Finding]:
        seen, reference = _counts(trial.yours), _counts(trial.expected)
        other = {rank: sorted(counts.keys() - set(ops) - reference[rank].keys()) for rank, counts in seen.items()}
        for ranks, names in grouped({rank: ", ".join(names) for rank, names in other.items() if names}):
            yield Finding(
                observed=f"{trial.who(ranks)} called {names}.",
                likely=f"The task allows only {' and '.join(ops)}.",
                action=f"Replace {names} by calls of {' and '.join(ops)}.",
            )

    return rule


def at_most(op: str, count: int) -> Rule:
    """Return a rule that allows at most `count` calls of `op` on each rank."""

    def rule(trial: Trial) -> Iterator[Finding]:
        counts = {rank: counts[op] for rank, counts in _counts(trial.yours).items()}
        over = {rank: str(made) for rank, made in counts.items() if made > count}
        for ranks, times in grouped(over):
            yield Finding(
                observed=f"{trial.who(ranks)} called {op} {times} times; {count} would do.",
                action=f"Find the {op} whose result a different call could return as well.",
                table=tuple(
                    Row(rank=rank, expected=f"at most {count}", yours=str(made), within=made <= count)
                    for rank, made in counts.items()
                ),
            )

    return rule


def same_calls() -> Rule:
    """Return a rule that requires the reference's calls on each rank: the same kinds and numbers, in any order."""

    def rule(trial: Trial) -> Iterator[Finding]:
        yours, expected = _counts(trial.yours), _counts(trial.expected)
        if yours == expected:
            return
        rank = next(rank for rank in yours if yours[rank] != expected[rank])
        as_many = yours[rank].total() == expected[rank].total()
        which = "should be a different one" if as_many else "is missing, or not needed"
        yield Finding(
            observed=f"rank {rank} made {_listed(yours[rank])}; the reference makes {_listed(expected[rank])}.",
            action=f"Follow the calls of this rank one by one. Which call {which}?",
            table=tuple(Row(rank=rank, expected=_listed(expected[rank]), yours=_listed(yours[rank])) for rank in yours),
        )

    return rule


def sends_no_more(instead: str, *, slack: float = 0) -> Rule:
    """Return a rule that no rank sends more bytes than with the reference, counted as on a ring.

    Args:
        instead: the calls that suffice, for the learner.
        slack: how much more a different right solution may send, as a share of what the reference sends.
    """

    def rule(trial: Trial) -> Iterator[Finding]:
        yours, expected = sent_bytes(trial.yours), sent_bytes(trial.expected)
        over = [rank for rank, nbytes in yours.items() if nbytes > expected[rank] * (1 + slack)]
        if over:
            yield Finding(
                observed=f"{trial.who(over[:1])} sent {yours[over[0]]:,} bytes; {expected[over[0]]:,} suffice.",
                action=f"Compare your calls with the calls that suffice: {instead}.",
                table=byte_rows(yours, expected, over),
            )

    return rule


def holds_no_more(category: str, at: str | None = None, *, slack: int = 0) -> Rule:
    """Return a rule that no rank holds more of `category` than with the reference, for exercises that are `measured`.

    Args:
        category: one of `meter.CATEGORIES`.
        at: the mark that the exercise's `trial` has set; by default the moment when it returns.
        slack: additional bytes that a right solution may hold, such as padding.
    """

    def rule(trial: Trial) -> Iterator[Finding]:
        yours, expected = _held(trial.yours, category, at), _held(trial.expected, category, at)
        over = [rank for rank, nbytes in yours.items() if nbytes > expected[rank] + slack]
        if not over:
            return
        rank = over[0]
        what, when = _WORDS.get(category, category), "at the end" if at is None else at
        still = [str(held) for held in _snapshot(trial.yours, rank, at).still_held]
        yield Finding(
            observed=f"{trial.who([rank])} holds {yours[rank]:,} bytes of {what}, {when}; {expected[rank]:,} suffice.",
            likely=f"{still[0]}." if still else "",
            action=f"Find what this rank does not need {when}, and let go of it: memory is freed when no variable, "
            "attribute or view refers to it any more.",
            table=byte_rows(yours, {rank: nbytes + slack for rank, nbytes in expected.items()}, over),
        )

    return rule


def lets_go(at: str, *, slack: int = 64, late_sends: bool = False) -> Rule:
    """At the mark `at`, no rank holds over `slack` bytes more than with the reference, for whatever purpose.

    With `late_sends`, a rank may also hold the tensors of all sends that it has started and not waited for.
    The sum may differ by a few bytes from run to run, so only the table contains it. A rank that does not reach the
    mark passes. Where an earlier mark saw the module's parameters, the finding names what still holds their memory.
    """

    def rule(trial: Trial) -> Iterator[Finding]:
        yours, expected = _held_at(trial.yours, at), _held_at(trial.expected, at)
        most = {rank: nbytes + slack for rank, nbytes in expected.items()}
        if late_sends:
            most = {rank: nbytes + _being_sent(trial.yours, rank, at) for rank, nbytes in most.items()}
        over = [rank for rank in yours if yours[rank] > most[rank]]
        if not over:
            return
        rank = over[0]
        still = sorted({holder for held in trial.yours.memory[rank].marks[at].still_held for holder in held.holders})
        holders = f" What was a parameter's is still held by {'; '.join(still)}." if still else ""
        yield Finding(
            observed=f"{trial.who([rank])} holds more {at} than it needs.{holders}",
            action="Look for what still refers to a tensor that is not needed: a variable, a gradient, an attribute, a "
            "view, a function that closes over it. Memory is freed with the last of them.",
            table=byte_rows(yours, most, over),
        )

    return rule


_WORDS = {"optimizer": "optimizer state", "communication": "communication buffers", "other": "other memory"}


def byte_rows(yours: dict[int, int], most: dict[int, int], over: list[int]) -> tuple[Row, ...]:
    """Return a row for each rank, with the most that it may have; the ranks in `over` have more."""
    return tuple(
        Row(rank=rank, expected=f"at most {most[rank]:,} bytes", yours=f"{nbytes:,} bytes", within=rank not in over)
        for rank, nbytes in yours.items()
    )


def sent_bytes(observation: Observation) -> dict[int, int]:
    """Return the bytes that each rank sent, as on a ring."""
    return {rank: Communication(rank=rank, calls=calls).sent_bytes for rank, calls in enumerate(observation.calls)}


def _held(observation: Observation, category: str, at: str | None) -> dict[int, int]:
    return {rank: _snapshot(observation, rank, at).by_category[category] for rank in range(len(observation.memory))}


def _held_at(observation: Observation, at: str) -> dict[int, int]:
    marks = {rank: report.marks.get(at) for rank, report in enumerate(observation.memory)}
    return {rank: snapshot.current_bytes for rank, snapshot in marks.items() if snapshot is not None}


def _being_sent(observation: Observation, rank: int, at: str) -> int:
    """Return the bytes of the sends that a rank has started before the mark, and has not waited for."""
    if (snapshot := observation.memory[rank].marks.get(at)) is None:
        return 0
    sends = [call for call in observation.calls[rank] if call.op == "send"]
    return sum(call.total_bytes for call in sends if call.issued < snapshot.seconds < call.handle_waited)


def _snapshot(observation: Observation, rank: int, at: str | None) -> Snapshot:
    report = observation.memory[rank]
    return report if at is None else report.marks[at]


def _counts(observation: Observation) -> dict[int, Counter[str]]:
    return {rank: Counter(call.op for call in calls) for rank, calls in enumerate(observation.calls)}


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {op}" for op, count in sorted(counts.items())) or "no call"
