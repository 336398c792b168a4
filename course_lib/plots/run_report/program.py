"""The lines that ranks printed. Equal lines of ranks are folded, and each rank's lines stay in their order."""

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from itertools import groupby

from .record import together

MOST_LINES = 400  # of each rank: half of them from the beginning, half from the end
COLOURS = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
"""The codes with which programs colour a terminal and move its cursor."""

Line = tuple[str, tuple[int, ...]]
"""A line, and the ranks that printed it."""


def blocks(output: Mapping[int, str]) -> Iterator[tuple[list[int], str]]:
    """Yield lines in a row that the same ranks printed, with these ranks."""
    merged: list[Line] = []
    for ranks in together(output):
        merged = _merged(merged, [(line, tuple(ranks)) for line in _shortened(output[ranks[0]])])
    for of_ranks, lines in groupby(merged, key=lambda line: line[1]):
        yield sorted(of_ranks), "\n".join(text for text, _ in lines)


def _shortened(text: str) -> list[str]:
    lines = COLOURS.sub("", text).splitlines()
    half, left_out = MOST_LINES // 2, len(lines) - MOST_LINES
    return lines if left_out <= 0 else [*lines[:half], f"… {left_out:,} lines are left out here …", *lines[-half:]]


def _merged(some: list[Line], others: list[Line]) -> list[Line]:
    """Return all lines of both, each in its order. Lines that both have are folded into one."""
    matcher = SequenceMatcher(None, [text for text, _ in some], [text for text, _ in others], autojunk=False)
    merged: list[Line] = []
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        mine, theirs = some[start:end], others[other_start:other_end]
        if kind == "equal":
            merged += [(text, ranks + more) for (text, ranks), (_, more) in zip(mine, theirs, strict=True)]
        else:
            merged += mine + theirs
    return merged
