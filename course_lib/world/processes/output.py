"""The ranks' output, shown while they run."""

from __future__ import annotations

import codecs
import time

from ..rank_threads.rank_state import Printed
from .protocol import END_OF_RUN

SHOW_EVERY = 0.25
"""Seconds between two updates. A shorter run shows its output once, in the order of ranks, and so always the same."""


class Output:
    """The output of all ranks.

    Attributes:
        ended: the ranks whose output is complete.
    """

    def __init__(self, world_size: int) -> None:
        self._printed = [Printed() for _ in range(world_size)]
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(world_size)]
        self._unshown = [""] * world_size
        self._held = [b""] * world_size  # perhaps the beginning of the mark
        self.ended: set[int] = set()
        self._due = time.monotonic() + SHOW_EVERY

    @property
    def texts(self) -> list[str]:
        """Return all output, by rank."""
        return [printed.text for printed in self._printed]

    def add(self, rank: int, written: bytes) -> None:
        """Add output of `rank`."""
        written = self._held[rank] + written
        if END_OF_RUN in written:
            self.ended.add(rank)
            written = written.replace(END_OF_RUN, b"")
        start = written.rfind(END_OF_RUN[:1], -len(END_OF_RUN))
        whole = len(written) if start < 0 or not END_OF_RUN.startswith(written[start:]) else start
        self._held[rank] = written[whole:]
        self._unshown[rank] += self._printed[rank].add(self._decoders[rank].decode(written[:whole]))

    def show_when_due(self) -> None:
        """Print the complete lines, if an update is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + SHOW_EVERY
        for rank, text in enumerate(self._unshown):
            whole, newline, rest = text.rpartition("\n")
            self._show(rank, whole + newline)
            self._unshown[rank] = rest

    def close(self) -> None:
        """Print the rest."""
        for rank, text in enumerate(self._unshown):
            self._show(rank, text)

    def _show(self, rank: int, text: str) -> None:
        for line in text.splitlines():
            print(f"[rank {rank}] {line}")
