"""The ranks' output: kept for the run, and printed with the rank of each line."""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import islice, pairwise
from math import inf
from typing import NamedTuple

OUTPUT_LIMIT = 1_000_000  # the most characters kept of a rank's output; the rest is counted and dropped
FOLD = 0.25  # seconds that a line waits for the same line of other ranks
AHEAD = 20  # lines of a rank that are compared with the next line of another


class Printed:
    """The output of one rank, up to `OUTPUT_LIMIT` characters."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._size = 0
        self._dropped = 0

    def add(self, text: str) -> str:
        """Keep as much of `text` as there is room for, and return that part."""
        kept = text[: max(0, OUTPUT_LIMIT - self._size)]
        self._written.append(kept)
        self._size += len(kept)
        self._dropped += len(text) - len(kept)
        return kept

    @property
    def text(self) -> str:
        """Return the kept output."""
        note = f"\n[{self._dropped} more characters were not kept]\n" if self._dropped else ""
        return "".join(self._written) + note


class Lines:
    """A printer of each rank's output by itself: `[rank 2] text`.

    Attributes:
        every: seconds between two updates of ranks that are processes. A shorter run prints its output once, in the
            order of ranks, and so always the same.
        live: whether ranks that are threads print while they run, and not only after it.
    """

    every, live = 0.25, False

    def add(self, rank: int, text: str) -> None:
        """Print the output of `rank`."""
        for line in text.splitlines():
            print(f"[rank {rank}] {line}")

    def update(self) -> None:
        """Print what has waited long enough."""

    def close(self) -> None:
        """Print the rest."""


class _Line(NamedTuple):
    text: str
    since: float


class FoldedLines(Lines):
    """A printer that prints a line once for all ranks that print it at about the same time: `[ranks 0-3] text`."""

    every, live = 0.0, True

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._begun: defaultdict[int, str] = defaultdict(str)  # the start of a line, by rank
        self._lines: defaultdict[int, deque[_Line]] = defaultdict(deque)

    def add(self, rank: int, text: str) -> None:
        now = time.monotonic()
        *lines, self._begun[rank] = (self._begun[rank] + text).split("\n")
        for line in lines:  # of a progress bar, which returns to the start of its line, only the end
            self._lines[rank].append(_Line(line.rstrip("\r").rpartition("\r")[2], now))

    def update(self) -> None:
        self._print(until=time.monotonic() - FOLD)

    def close(self) -> None:
        for rank, begun in list(self._begun.items()):
            self.add(rank, "\n" if begun else "")
        self._print(until=inf)

    def _print(self, until: float) -> None:
        """Print the lines that all ranks have printed, and those from before `until`."""
        while found := self._next():
            line, ranks = found
            if len(ranks) < self._world_size and line.since > until:
                break
            for rank in ranks:
                self._lines[rank].popleft()
            print(f"[{in_ranges(ranks)}] {line.text}", flush=True)

    def _next(self) -> tuple[_Line, list[int]] | None:
        """Return the next line and the ranks that have printed it. A line that other ranks print later can wait."""
        alike: defaultdict[str, list[int]] = defaultdict(list)
        later: set[str] = set()
        for rank, lines in sorted(self._lines.items()):
            if lines:
                alike[lines[0].text].append(rank)
            later.update(line.text for line in islice(lines, 1, AHEAD))
        found = [(min(self._lines[rank][0] for rank in ranks), ranks) for ranks in alike.values()]
        free = [one for one in found if one[0].text not in later]
        return min(free or found, key=lambda one: one[0].since, default=None)


def in_ranges(ranks: Sequence[int]) -> str:
    """Return `rank 2`, or `ranks 0-3, 6` for the sorted ranks 0, 1, 2, 3 and 6."""
    ends = [position for position, (one, two) in enumerate(pairwise(ranks)) if two > one + 1]
    parts = zip([0, *(end + 1 for end in ends)], [*ends, len(ranks) - 1], strict=True)
    text = ", ".join(f"{ranks[a]}-{ranks[b]}" if a < b else f"{ranks[a]}" for a, b in parts)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"
