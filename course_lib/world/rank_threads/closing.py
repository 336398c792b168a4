"""The end of a run's process groups: the ranks, which are threads, close them at the same time."""

import contextlib
import time
from collections.abc import Sequence

from ..collectives.fault import State
from ..torch_hooks import gloo, private
from .coordinator import ThreadCoordinator
from .process_state import collect_garbage
from .rank_thread import RankThread

DELIVERING = 0.4  # seconds in which results that no rank waits for may still be delivered


def close(coordinator: ThreadCoordinator, ranks: Sequence[RankThread]) -> None:
    """Let all ranks that have left close their groups, at the same time."""
    deadline = time.monotonic() + DELIVERING
    while any(rank.delivering for rank in ranks) and time.monotonic() < deadline:
        time.sleep(1e-4)
    # A rank inside gloo may still leave: it is freed when a peer closes its end.
    left = [rank for rank in ranks if coordinator.states[rank.rank] in (State.RETURNED, State.RAISED)]
    private.forget_running_ddp()
    collect_garbage()  # models and frames that hold groups are in reference cycles
    for rank in left:
        rank.collected = True
    with gloo.loopback.hurried() if len(ranks) > 1 else contextlib.nullcontext():  # one rank has no connections
        for rank in ranks:
            rank.finish.set()
        for rank in ranks:
            rank.join(timeout=5 if rank in left else 0.2)
