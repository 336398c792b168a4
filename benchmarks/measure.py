"""One row of the results: two things done in the same run, and their ratio."""

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measurement beside its peer.

    Attributes:
        what: what was done.
        ours: what it took; seconds, unless `unit` says otherwise.
        peer: what the other way took, in the same run.
        peer_name: what the other way is.
        most: the most that it may take; None without such a goal.
        most_of_peer: the same, as a multiple of the peer's.
    """

    what: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    most: float | None = None
    most_of_peer: float | None = None
    unit: str = "s"

    @property
    def goal(self) -> str:
        """The goals in words; empty when the row is only information."""
        absolute = [] if self.most is None else [f"≤ {self.most:g} {self.unit}"]
        relative = [] if self.most_of_peer is None else [f"≤ {self.most_of_peer:g} × {self.peer_name}"]
        return " and ".join(absolute + relative)

    @property
    def met(self) -> bool | None:
        """Whether the goals are met; None when there is none."""
        limits = [self.most] if self.most is not None else []
        if self.most_of_peer is not None and self.peer is not None:
            limits.append(self.most_of_peer * self.peer)
        return self.ours <= min(limits) if limits else None

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


def machine() -> str:
    """Where and when, for the record."""
    gpus = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "no GPU"
    return (
        f"{datetime.date.today()}: {os.cpu_count()} cores ({platform.machine()}), {gpus}, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
