"""The ranks' output, shown while they run."""

import io
import re
import time
from typing import Any

from ..rank_threads.printing import LONGEST, Lines, Printed

END_OF_RUN = b"\0course: end of run\0"
"""The worker's last output of a run. It is not shown."""

_ERRORS, _NO_ERRORS = b"\0course: stderr\0", b"\0course: stdout\0"
"""What stands around each part of the output that a rank wrote to stderr. It is not shown."""

_PARTS = re.compile(b"(" + _ERRORS + b"|" + _NO_ERRORS + b")")


class StandardError(io.FileIO):
    """The stderr of a rank, which goes where its stdout goes."""

    def write(self, data: Any) -> int:
        super().write(_ERRORS + bytes(data) + _NO_ERRORS)
        return len(data)


class Output:
    """The output of all ranks, which `lines` prints.

    Attributes:
        ended: the ranks whose output is complete.
    """

    def __init__(self, world_size: int, lines: Lines) -> None:
        self._lines = lines
        self._shown = [Printed() for _ in range(world_size)]
        self._unshown = [b""] * world_size
        self._in_errors = [False] * world_size
        self.ended: set[int] = set()
        self._due = time.monotonic() + lines.every

    @property
    def texts(self) -> list[str]:
        return [shown.text for shown in self._shown]

    def add(self, rank: int, written: bytes) -> None:
        unshown = self._unshown[rank] + written
        if END_OF_RUN in unshown:
            self.ended.add(rank)
            unshown = unshown.replace(END_OF_RUN, b"")
        self._unshown[rank] = unshown

    def show_when_due(self) -> None:
        """Print the complete lines, and the beginning of a very long one, if an update is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._lines.every
        for rank, written in enumerate(self._unshown):
            end = written.rfind(b"\n") + 1
            if len(written) - end > LONGEST and _may_end(written):
                end = len(written)
            self._unshown[rank] = written[end:]
            self._show(rank, written[:end])
        self._lines.update()

    def close(self) -> None:
        for rank, written in enumerate(self._unshown):
            self._show(rank, written)
        self._lines.close()

    def _show(self, rank: int, written: bytes) -> None:
        for part in _PARTS.split(written):
            if part in (_ERRORS, _NO_ERRORS):
                self._in_errors[rank] = part == _ERRORS
            elif part:
                text = part.decode(errors="replace")
                kept = self._shown[rank].add(text)
                self._lines.add(rank, kept if self._lines.every else text, errors=self._in_errors[rank])


def _may_end(written: bytes) -> bool:
    """Return whether output can be cut at its end: in no character, and in none of the marks above."""
    return written[-1:].isascii() and b"\0" not in written[-len(END_OF_RUN) :]
