"""A simulated rank: a thread whose groups are real gloo."""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

from ..pickling import Copies
from ..rank_threads.coordinator import ThreadCoordinator
from ..rank_threads.one_process import one_profiler
from ..rank_threads.rank_thread import RankThread
from ..torch_hooks import private
from .open_files import make_room


class Rank(RankThread):
    """One rank of a simulated world.

    Attributes:
        finish: set when all ranks have left, and may close their groups.
        left_groups: the groups that it has closed.
    """

    def __init__(self, rank: int, coordinator: ThreadCoordinator, copies: Copies, store: dist.Store) -> None:
        super().__init__(rank, coordinator, copies)
        self.finish = threading.Event()
        self.left_groups: list[weakref.ref[dist.ProcessGroup]] = []
        self._store = store
        self._threads = max(1, torch.get_num_threads() // coordinator.world_size)

    def new_group(self, group_name: str, ranks: list[int]) -> None:
        make_room(len(ranks))
        super().new_group(group_name, ranks)

    def join_group(self) -> None:
        torch.set_num_threads(self._threads)  # its part of the cores, like torchrun; see process_state.py
        dist.init_process_group(
            "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.coordinator.world_size,
            timeout=timedelta(hours=1),  # ranks wait in the coordinator, not in gloo
        )

    def leave_groups(self) -> None:
        one_profiler.end_rank()
        self.finish.wait()
        if dist.is_initialized():
            self.left_groups = [weakref.ref(group) for group in private.groups()]
            dist.destroy_process_group()
