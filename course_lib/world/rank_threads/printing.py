"""The ranks' output: kept for the run, and printed with the rank of each line."""

import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from math import inf
from typing import NamedTuple

from ...errors import who

OUTPUT_LIMIT = 1_000_000  # the most characters kept of a rank's output; the rest is counted and dropped
LONGEST = 100_000  # the most characters that wait for the end of their line; a longer line is printed in parts
FOLD = 0.25  # seconds that a line waits for the same line of other ranks
AHEAD = 100  # lines of a rank that are compared with the next line of another
MOST_LINES = 400  # of each rank on a page: half of them from the beginning, half from the end
COLOURS = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
"""The codes with which programs colour a terminal and move its cursor."""


class Printed:
    """The output of one rank, up to `OUTPUT_LIMIT` characters."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._size = 0
        self._dropped = 0

    def add(self, text: str) -> str:
        kept = text[: max(0, OUTPUT_LIMIT - self._size)]
        self._written.append(kept)
        self._size += len(kept)
        self._dropped += len(text) - len(kept)
        return kept

    @property
    def text(self) -> str:
        note = f"\n[{self._dropped} more characters were not kept]\n" if self._dropped else ""
        return "".join(self._written) + note


class Lines:
    """A printer of each rank's output by itself: `[rank 2] text`.

    Attributes:
        every: seconds between two updates of ranks that are processes. A shorter run prints its output once, in the
            order of ranks, and so always the same; of ranks that are threads, see `supervisor`. 0: all print at once.
    """

    every = 0.25
    _unfinished: int | None = None  # the rank whose line has no end yet

    def add(self, rank: int, text: str, *, errors: bool = False) -> None:
        for line in text.splitlines(keepends=True):
            if self._unfinished != rank:
                self.close()
                print(f"[rank {rank}] ", end="")
            (words,) = line.splitlines()
            self._unfinished = rank if words == line else None
            print(words, end="" if words == line else "\n")

    def update(self) -> None: ...

    def close(self) -> None:
        if self._unfinished is not None:
            self._unfinished = None
            print()


class _Line(NamedTuple):
    text: str
    errors: bool
    since: float


class FoldedLines(Lines):
    """A printer that prints a line once for all ranks that print it at about the same time: `[ranks 0-3] text`.

    Lines of stderr go to stderr, and are folded among themselves.
    """

    every = 0.0

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._begun: defaultdict[tuple[int, bool], str] = defaultdict(str)  # the start of a line, by rank and `errors`
        self._lines: defaultdict[int, deque[_Line]] = defaultdict(deque)

    def add(self, rank: int, text: str, *, errors: bool = False) -> None:
        now = time.monotonic()
        *lines, begun = (self._begun[rank, errors] + text).split("\n")
        if len(begun) > LONGEST:
            lines, begun = [*lines, begun], ""
        self._begun[rank, errors] = begun
        for line in lines:  # of a progress bar, which returns to the start of its line, only the end
            self._lines[rank].append(_Line(line.rstrip("\r").rpartition("\r")[2], errors, now))

    def update(self) -> None:
        self._print(until=time.monotonic() - FOLD)

    def close(self) -> None:
        for (rank, errors), begun in list(self._begun.items()):
            self.add(rank, "\n" if begun else "", errors=errors)
        self._print(until=inf)

    def _print(self, until: float) -> None:
        for ranks, line in self.ready(until):
            print(f"[{who(ranks)}] {line.text}", file=sys.stderr if line.errors else sys.stdout, flush=True)

    def ready(self, until: float) -> Iterator[tuple[list[int], _Line]]:
        """Yield and drop the lines that all ranks have printed, and those from before `until`, with their ranks."""
        while found := self._next():
            line, ranks = found
            if len(ranks) < self._world_size and line.since > until:
                break
            for rank in ranks:
                self._lines[rank].popleft()
            yield ranks, line

    def _next(self) -> tuple[_Line, list[int]] | None:
        """Return the next line and the ranks that have printed it. A line that other ranks print later can wait."""
        alike: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
        later: set[tuple[str, bool]] = set()
        for rank, lines in sorted(self._lines.items()):
            if lines:
                alike[lines[0][:2]].append(rank)
            later.update(line[:2] for line in islice(lines, 1, AHEAD))
        found = [(min(self._lines[rank][0] for rank in ranks), ranks) for ranks in alike.values()]
        free = [one for one in found if one[0][:2] not in later]
        return min(free or found, key=lambda one: one[0].since, default=None)


def folded(output: Mapping[int, str]) -> list[tuple[Sequence[int], str]]:
    """Return the text that ranks have printed, for a page: lines in a row of the same ranks, with these ranks."""
    lines = FoldedLines(len(output))
    for rank, text in output.items():
        lines.add(rank, _shortened(COLOURS.sub("", text).splitlines()) + "\n" if text else "")
    grouped_lines = groupby(lines.ready(until=inf), lambda one: one[0])
    return [(ranks, "\n".join(line.text for _, line in group)) for ranks, group in grouped_lines]


def _shortened(lines: list[str]) -> str:
    half, left_out = MOST_LINES // 2, len(lines) - MOST_LINES
    if left_out > 0:
        lines = [*lines[:half], f"… {left_out:,} lines are left out here …", *lines[-half:]]
    return "\n".join(lines)
