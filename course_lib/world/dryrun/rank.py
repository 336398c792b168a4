"""The one rank of a dry run: a thread without peers.

Its collectives are described and counted as in a simulated world, and finish at once: the shape of their results is
known, the numbers are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from ...meter import tensors_in
from ..collectives.fault import State
from ..collectives.local_call import LocalCall
from ..learner_code import ErrorReport
from ..pickling import Copies
from ..rank_threads.coordinator import ThreadCoordinator
from ..rank_threads.rank_thread import RankThread
from ..torch_hooks import private
from .fake_tensors import NoNumbers, WithoutNumbers, fake_copy


class WithoutPeers(ThreadCoordinator):
    """The coordinator of rank `rank`: the others have nothing to do, and every call proceeds at once."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(world_size)
        self.states = [State.RETURNED] * world_size
        self.states[rank] = State.RUNNING

    def called(self, local: LocalCall) -> None:
        pass

    def wait_for(self, local: LocalCall) -> None:
        pass


class DryRank(RankThread):
    """The rank: its thread and, afterwards, its result or exception."""

    def __init__(self, rank: int, coordinator: WithoutPeers, copies: Copies) -> None:
        super().__init__(rank, coordinator, copies)
        self._mode = WithoutNumbers()

    def collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[..., Any]) -> Any:
        call = self.recorder.collective(operator, arguments, ("cpu",))
        call.times.matched = call.times.done = call.times.issued
        if self.meter is not None:
            self.meter.lend(arguments.values())  # sets their category; no transport borrows them
        tensors = list(tensors_in(arguments))
        if not any(isinstance(tensor, private.FakeTensor) for tensor in tensors):
            return execute(*arguments.values())  # integers of DDP's C++ part: as if its peers had the same ones
        self._mode.forget(tensors)
        return private.completed(operator, arguments)

    def join_group(self) -> None:
        world_size = self.coordinator.world_size
        dist.init_process_group("gloo", store=dist.HashStore(), rank=self.rank, world_size=world_size)

    def call_copy(self) -> None:
        call = fake_copy(self._copies, self._mode, self._made)
        with self._mode:
            result = self.in_learners_code(*call)
        self.result = private.without_mode(result)

    def report(self, error: BaseException) -> ErrorReport:
        """Return the report of `error`; if `NoNumbers` caused it, with that error's type and message."""
        behind: BaseException | None = error
        while behind is not None and not isinstance(behind, NoNumbers):
            behind = behind.__cause__
        report = super().report(error)
        return report if behind is None else replace(report, type=NoNumbers.__name__, message=str(behind))

    def leave_groups(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def _made(self, tensor: torch.Tensor) -> None:
        if self.meter is not None:
            self.meter.resized(tensor, "set_")  # the name of the operator that unpickles tensors
