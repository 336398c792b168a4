"""The ranks' output, shown while they run."""

import time

from ..rank_threads.rank_state import Printed
from ..run import show

END_OF_RUN = b"\0course: end of run\0"
"""The worker's last output of a run. It is not shown."""

SHOW_EVERY = 0.25
"""Seconds between two updates. A shorter run shows its output once, in the order of ranks, and so always the same."""


class Output:
    """The output of all ranks.

    Attributes:
        ended: the ranks whose output is complete.
    """

    def __init__(self, world_size: int) -> None:
        self._shown = [Printed() for _ in range(world_size)]
        self._unshown = [b""] * world_size
        self.ended: set[int] = set()
        self._due = time.monotonic() + SHOW_EVERY

    @property
    def texts(self) -> list[str]:
        """Return what was shown, by rank."""
        return [shown.text for shown in self._shown]

    def add(self, rank: int, written: bytes) -> None:
        """Add output of `rank`."""
        unshown = self._unshown[rank] + written
        if END_OF_RUN in unshown:
            self.ended.add(rank)
            unshown = unshown.replace(END_OF_RUN, b"")
        self._unshown[rank] = unshown

    def show_when_due(self) -> None:
        """Print the complete lines, if an update is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + SHOW_EVERY
        for rank, written in enumerate(self._unshown):
            whole, newline, self._unshown[rank] = written.rpartition(b"\n")
            self._show(rank, whole + newline)

    def close(self) -> None:
        """Print the rest."""
        for rank, written in enumerate(self._unshown):
            self._show(rank, written)

    def _show(self, rank: int, written: bytes) -> None:
        show(self._shown[rank].add(written.decode(errors="replace")), rank)
