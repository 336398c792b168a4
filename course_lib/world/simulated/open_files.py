"""How many files this process may have open: each two of its ranks have a connection, and each end of it is one.

gloo ends the process when it may open no more, the kernel and all. So connections are promised before they are made:
to a run, which gives them back when it is over. A group that ends earlier is not subtracted: few programs make groups
by the hundred, and those had better keep them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf

from ...errors import CourseError

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

PLENTY = 65_536
"""As many are asked for where there are too few, so that it is rarely asked again. Children inherit it."""

SPARE = 256
"""Files that are no connections: the kernel's own, and the learner's."""

Promise = Callable[[int, int], None]
"""Called with a group's number of ranks, and how many ends of its connections are about to be made."""


class Connections:
    """Those of all runs of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends = 0

    @contextmanager
    def of_a_run(self) -> Iterator[Promise]:
        """Inside it, a run may have connections promised.

        Raises:
            CourseError: by the promise, where the process may not have so many files open.
        """
        ends_of_run = 0

        def promise(ranks: int, ends: int) -> None:
            nonlocal ends_of_run
            with self._lock:
                allowed = _allowed(self._ends + ends + SPARE)
                if self._ends + ends + SPARE > allowed:
                    raise CourseError(
                        f"A group of {ranks} simulated ranks has connections with {ranks * (ranks - 1):,} ends in this "
                        "process, each an open file. With those of earlier groups, that is more than it may have open: "
                        f"{allowed:,}, of which {SPARE} are kept for other uses. Make groups once and keep them, or "
                        "take fewer ranks; or raise the limit where JupyterLab is started (`ulimit -Hn`, as root, or "
                        "the settings of the container)."
                    )
                self._ends += ends
                ends_of_run += ends

        try:
            yield promise
        finally:
            with self._lock:
                self._ends -= ends_of_run


def _allowed(wanted: int) -> float:
    """How many files may be open, after the limit was raised as far as `wanted` needs it and the system lets it be."""
    if resource is None:
        return inf
    for more in (max(wanted, PLENTY), wanted):  # macOS refuses some that it has no limit for
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if _number(soft) < wanted:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (int(min(more, _number(hard))), hard))
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _number(limit: int) -> float:
    return inf if limit == resource.RLIM_INFINITY else limit


connections = Connections()
