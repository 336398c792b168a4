"""What every backend gives for a run, whatever its ranks are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..meter import MemoryReport
from .collectives.call import Call


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run gave, by rank.

    Attributes:
        results: what was returned.
        output: what was printed.
        calls: the calls on other ranks, in their order.
        started: when the run began, in seconds of `time.perf_counter`.
        spans: when the rank entered the function and when it left, likewise.
        memory: what the rank held; nothing where that was not measured.
    """

    results: list[Any]
    output: list[str]
    calls: list[list[Call]]
    started: float
    spans: list[tuple[float, float]]
    memory: list[MemoryReport]
