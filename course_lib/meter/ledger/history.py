"""A rank's memory over time, in bounded space: recent changes one by one, earlier changes in groups."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..source_line import SourceLine
    from .ledger import Block

DETAILED = 20_000  # at least this many of the latest changes are kept one by one
GROUP = 100  # earlier changes are combined in groups of this size


class MemoryEvent(NamedTuple):
    """A change to the memory of a rank. In a long run, early changes are combined in groups of a hundred.

    Attributes:
        seconds: the time from the start of the run.
        current_bytes: the bytes held afterwards.
        highest_bytes: the most bytes held since the event before.
        operator: the operator that made the block; for a group of blocks, the one at the highest point.
        deltas: bytes allocated (above 0) or freed (below 0), by category.
        line: the learner's line that called the operator, if it is known.
    """

    seconds: float
    current_bytes: int
    highest_bytes: int
    operator: str
    deltas: Mapping[str, int]
    line: SourceLine | None = None


class History:
    """The allocations and frees of a rank, in order."""

    def __init__(self) -> None:
        # The latest changes are stored in columns, not in tuples: the garbage collector would traverse tuples
        # repeatedly.
        self._seconds, self._deltas, self._currents = array("d"), array("q"), array("q")
        self._blocks: list[Block] = []
        self._earlier: list[MemoryEvent] = []

    def add(self, seconds: float, block: Block, delta: int, current: int) -> None:
        """Record that `block` was allocated or freed at `seconds`: `delta` bytes were added, which makes `current`."""
        self._seconds.append(seconds)
        self._blocks.append(block)
        self._deltas.append(delta)
        self._currents.append(current)
        if len(self._blocks) > 2 * DETAILED:
            self._condense()

    def events(self, most: int | None = None) -> Iterator[MemoryEvent]:
        """Yield all changes, in order, the latest combined into at most `most` groups. Call it at the end, when all
        categories are known."""
        yield from self._earlier
        if most is None:
            columns = zip(self._seconds, self._blocks, self._deltas, self._currents, strict=True)
            for seconds, block, delta, current in columns:
                yield MemoryEvent(seconds, current, current, block.operator, {_category(block): delta}, block.line)
        else:
            yield from self._combined(len(self._blocks), max(1, -(-len(self._blocks) // most)))

    def _condense(self) -> None:
        self._earlier += self._combined(DETAILED, GROUP)
        for column in (self._seconds, self._blocks, self._deltas, self._currents):
            del column[:DETAILED]

    def _combined(self, number: int, size: int) -> Iterator[MemoryEvent]:
        """Yield the first changes, so many of them, in groups of `size`."""
        for start in range(0, number, size):
            group = range(start, min(start + size, number))
            deltas: defaultdict[str, int] = defaultdict(int)
            for place in group:
                block = self._blocks[place]
                block.counted_as = _category(block)  # fixed now: the free must use the same category
                deltas[block.counted_as] += self._deltas[place]
            most = max(group, key=self._currents.__getitem__)
            seconds, current = self._seconds[group[-1]], self._currents[group[-1]]
            block = self._blocks[most]
            yield MemoryEvent(seconds, current, self._currents[most], block.operator, dict(deltas), block.line)


def _category(block: Block) -> str:
    return block.counted_as or block.category or "other"
