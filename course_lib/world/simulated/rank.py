"""A simulated rank: a thread that behaves like a process and can be stopped."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ...meter import MemoryMeter, unwatched
from ..collectives.fault import Fault, State, Stopped
from ..learner_code import ErrorReport
from ..pickling import Copies
from ..rank_threads.one_process import one_profiler
from ..rank_threads.rank_state import RankState
from ..rank_threads.stopping import Stoppable
from ..torch_hooks import interposer, private
from .coordinator import ThreadCoordinator
from .open_files import make_room


class Rank(Stoppable):
    """One rank: its thread, its rank state and, afterwards, its result or exception."""

    def __init__(self, rank: int, coordinator: ThreadCoordinator, copies: Copies, store: dist.Store) -> None:
        super().__init__(name=f"rank {rank}")
        self.rank = rank
        self.coordinator = coordinator
        self.rank_state = RankState(rank, coordinator.world_size)
        self.meter: MemoryMeter | None = None  # set if memory is measured
        self.result: Any = None
        self.raised: ErrorReport | None = None
        self.finish = threading.Event()
        self.groups = interposer.no_groups()
        self.left_groups: list[weakref.ref[dist.ProcessGroup]] = []
        self._copies = copies
        self._store = store
        self._threads = max(1, torch.get_num_threads() // coordinator.world_size)

    # -- the interposer of this thread: see interposer.Interposer ---------------------------------------------------

    @property
    def generator(self) -> torch.Generator:
        return self.rank_state.torch

    def collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[..., Any]) -> Any:
        with self.shielded():
            if self.meter is None:
                bound = partial(execute, *arguments.values())
                return self.coordinator.collective(self.rank, operator, arguments, bound, self.identity)
            loan = self.meter.lend(arguments.values())
            hidden = unwatched(partial(execute, *loan.arguments))
            result = self.coordinator.collective(self.rank, operator, arguments, hidden, self.identity)
            self.meter.lent(loan, self.coordinator.log[self.rank][-1].times)
            return result

    def new_group(self, group_name: str, ranks: list[int]) -> None:
        make_room(len(ranks))
        with self.shielded():
            self.coordinator.new_group(self.rank, group_name, ranks)

    def not_in_group(self, op: str) -> None:
        with self.shielded():
            self.coordinator.not_in_group(self.rank, op)

    def waiting(self, waited: Any) -> None:
        with self.shielded():
            self.coordinator.waiting(self.rank, waited)

    @contextlib.contextmanager
    def identity(self) -> Iterator[None]:
        with interposer.interposed(self), self.rank_state.own():
            yield

    # -- the thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        torch.set_num_threads(self._threads)  # its part of the cores, like torchrun; see process_state.py
        with self.identity():
            try:
                self._work()
            finally:
                one_profiler.end_rank()
                self.finish.wait()
                self._leave_groups()

    def _leave_groups(self) -> None:
        if dist.is_initialized():
            self.left_groups = [weakref.ref(group) for group in private.groups()]
            dist.destroy_process_group()

    def _work(self) -> None:
        error = self._call()
        if error is None:
            self.coordinator.left(self.rank, State.RETURNED)
        elif isinstance(error, Stopped) or self.coordinator.stopping:  # then the error is a consequence
            self.coordinator.left(self.rank, State.RAISED)
        else:
            self.raised = ErrorReport.of(error)
            fault = Fault(kind="exited" if isinstance(error, SystemExit) else "raised", ranks=(self.rank,))
            self.coordinator.left(self.rank, State.RAISED, fault)

    def _call(self) -> BaseException | None:
        """Run the learner's function, and return its exception."""
        try:
            dist.init_process_group(
                "gloo",
                store=self._store,
                rank=self.rank,
                world_size=self.coordinator.world_size,
                timeout=timedelta(hours=1),  # ranks wait in the coordinator, not in gloo
            )
            with contextlib.nullcontext() if self.meter is None else self.meter.watching():
                self._call_copy()
        except BaseException as error:
            return error
        return None

    def _call_copy(self) -> None:
        fn, args, kwargs = self._copies.unpack()
        self.coordinator.entered(self.rank)
        meter = self.meter
        self.result = self.stoppably(
            partial(fn, *args, **kwargs) if meter is None else partial(meter.call, fn, args, kwargs)
        )
