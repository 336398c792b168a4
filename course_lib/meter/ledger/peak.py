"""The moment when a rank held the most memory, with a list of what it held."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..source_line import SourceLine
from .ledger import CATEGORIES, Ledger


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Blocks of memory with the same size, category, operator, line and layout.

    Attributes:
        count: the number of blocks;  block_bytes: the size of each block.
        category: one of `CATEGORIES`.
        operator: the operator that made the blocks.
        line: the learner's line that called the operator. None for blocks under a thousandth of the peak, and where
            only library code is on the stack.
        layout: dtype and shape of the new tensor, such as `float32 [4, 2]`. Empty for blocks that are too small for a
            line.
    """

    count: int
    block_bytes: int
    category: str
    operator: str
    line: SourceLine | None
    layout: str

    @property
    def total_bytes(self) -> int:
        return self.count * self.block_bytes

    def __str__(self) -> str:
        where = "" if self.line is None else f"  ({self.line}: {self.line.source})"
        return (
            f"{self.count:>4} x {self.block_bytes:>13,} bytes  {self.category:<13}  {self.layout or 'small'} "
            f"made by {self.operator}{where}"
        )


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The memory of a rank at the moment when it held the most.

    Attributes:
        seconds: the time from the start of the run.
        total_bytes: the bytes held.
        operator: the operator that made the last block;  line: the learner's line that called it.
        by_category: `total_bytes`, by `CATEGORIES`.
        holdings: the blocks, similar ones together, largest total first.
    """

    seconds: float
    total_bytes: int
    operator: str
    line: SourceLine | None
    by_category: Mapping[str, int]
    holdings: tuple[Holding, ...]

    def __str__(self) -> str:
        where = "" if self.line is None else f", at {self.line}: {self.line.source}"
        lines = [f"{self.total_bytes:,} bytes held at the peak, when {self.operator} made the last{where}"]
        return "\n".join([*lines, *map(str, self.holdings[:12])])

    __repr__ = __str__


def peak_of(ledger: Ledger) -> Peak | None:
    """Return the peak that `ledger` recorded, or None if no block was ever made."""
    last = ledger.peak_block
    if last is None:
        return None
    by_category = Counter(dict.fromkeys(CATEGORIES, 0))
    alike: Counter[tuple[Any, ...]] = Counter()
    for block in ledger.at_peak:
        category = block.category or "other"
        by_category[category] += block.size
        alike[block.size, category, block.operator, block.line, block.layout] += 1
    holdings = [
        Holding(
            count=count,
            block_bytes=size,
            category=category,
            operator=operator,
            line=line,
            layout="" if layout is None else f"{str(layout[0]).removeprefix('torch.')} {list(layout[1])}",
        )
        for (size, category, operator, line, layout), count in alike.items()
    ]
    return Peak(
        seconds=last.seconds,
        total_bytes=ledger.peak,
        operator=last.operator,
        line=last.line,
        by_category=dict(by_category),
        holdings=tuple(sorted(holdings, key=lambda holding: -holding.total_bytes)),
    )
