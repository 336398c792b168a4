"""What was held over time, in bounded space."""

from __future__ import annotations

from array import array
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
        # Of the latest. Columns, not tuples, through which the garbage collector would look again and again.
        self._seconds, self._deltas, self._currents = array("d"), array("q"), array("q")
        self._blocks: list[Block] = []
        self._earlier: list[Change] = []

    def add(self, seconds: float, block: Block, delta: int, current: int) -> None:
        """`block` came or went at `seconds`: `delta` bytes more, which makes `current`."""
        self._seconds.append(seconds)
        self._blocks.append(block)
        self._deltas.append(delta)
        self._currents.append(current)
        if len(self._blocks) > 2 * DETAILED:
            self._condense()

    def changes(self, started: float) -> Iterator[Change]:
        """All changes since `started`, in their order; call it when as much is known of categories as ever will be."""
        for seconds, current, highest, operator, deltas in self._earlier:
            yield seconds - started, current, highest, operator, deltas
        for seconds, block, delta, current in zip(
            self._seconds, self._blocks, self._deltas, self._currents, strict=True
        ):
            yield seconds - started, current, current, block.operator, {_category(block): delta}

    def _condense(self) -> None:
        for start in range(0, DETAILED, GROUP):
            group = range(start, start + GROUP)
            deltas: defaultdict[str, int] = defaultdict(int)
            for number in group:
                block = self._blocks[number]
                block.told = _category(block)  # from now on, so that it goes from where it came to
                deltas[block.told] += self._deltas[number]
            most = max(group, key=self._currents.__getitem__)
            seconds, current = self._seconds[group[-1]], self._currents[group[-1]]
            self._earlier.append((seconds, current, self._currents[most], self._blocks[most].operator, dict(deltas)))
        for column in (self._seconds, self._blocks, self._deltas, self._currents):
            del column[:DETAILED]


def _category(block: Block) -> str:
    return block.told or block.category or "other"
