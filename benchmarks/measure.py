"""One row of the results: two things done in the same run, and their ratio."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measurement beside its peer.

    Attributes:
        what: what was done.
        ours: what it took; seconds, unless `unit` says otherwise.
        peer: what the other way took, in the same run.
        peer_name: what the other way is.
        goal: the bound that the row must meet, in words; empty when it is only information.
        met: whether it does; None when there is no goal.
    """

    what: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    goal: str = ""
    met: bool | None = None
    unit: str = "s"

    @property
    def ratio(self) -> float | None:
        """How many times ours the peer took."""
        return None if self.peer is None or self.ours == 0 else self.peer / self.ours


def median_seconds(fn: Callable[[], object], repeat: int) -> float:
    """The median time of `repeat` calls: these machines are noisy, and the mean would follow the worst."""
    return statistics.median(seconds(fn) for _ in range(repeat))


def seconds(fn: Callable[[], object]) -> float:
    """The time of one call."""
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start
