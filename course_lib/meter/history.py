"""What was held over time, in bounded space."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ledger import Block

DETAILED = 20_000
"""The latest changes, at least so many, are kept one by one ..."""

GROUP = 100
"""... and earlier ones in groups of so many."""

Change = tuple[float, int, int, str, dict[str, int]]
"""Seconds, bytes held after it, the most since the one before, operator, and the difference to each category."""


class History:
    """Every change to what a rank holds."""

    def __init__(self) -> None:
        self._latest: list[tuple[float, Block, int, int]] = []
        self._earlier: list[Change] = []

    def add(self, seconds: float, block: Block, delta: int, current: int) -> None:
        """`block` came or went at `seconds`: `delta` bytes more, which makes `current`."""
        self._latest.append((seconds, block, delta, current))
        if len(self._latest) > 2 * DETAILED:
            self._condense()

    def changes(self, started: float) -> Iterator[Change]:
        """All changes since `started`, in their order; call it when as much is known of categories as ever will be."""
        for seconds, current, highest, operator, deltas in self._earlier:
            yield seconds - started, current, highest, operator, deltas
        for seconds, block, delta, current in self._latest:
            yield seconds - started, current, current, block.operator, {_category(block): delta}

    def _condense(self) -> None:
        for start in range(0, DETAILED, GROUP):
            group = self._latest[start : start + GROUP]
            deltas: defaultdict[str, int] = defaultdict(int)
            for _, block, delta, _ in group:
                block.told = _category(block)  # from now on, so that it goes from where it came to
                deltas[block.told] += delta
            seconds, _, _, current = group[-1]
            most = max(group, key=lambda change: change[3])
            self._earlier.append((seconds, current, most[3], most[1].operator, dict(deltas)))
        del self._latest[:DETAILED]


def _category(block: Block) -> str:
    return block.told or block.category or "other"
