"""The one rank of a dry run: a thread without peers.

Its collectives are described and counted as in a simulated world, and finish at once: the shape of their results is
known, the numbers are not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ...meter import MemoryMeter, tensors_in
from ..collectives.call import Call
from ..collectives.recorder import CallRecorder
from ..learner_code import ErrorReport, learner_line
from ..pickling import Copies
from ..rank_threads.rank_state import RankState
from ..rank_threads.stopping import Stoppable
from ..torch_hooks import interposer, private
from .fake_tensors import NoNumbers, WithoutNumbers, fake_copy


class NotInGroup(BaseException):
    """A collective was called on a foreign group. It is no Exception: torch's log of Exceptions would fail on the
    group."""


class DryRank(Stoppable):
    """Rank `rank` of `world_size`: its thread and, afterwards, its result or exception."""

    def __init__(self, rank: int, world_size: int, copies: Copies, meter: MemoryMeter | None) -> None:
        super().__init__(name=f"rank {rank}")
        self.rank, self.world_size = rank, world_size
        self.rank_state = RankState(rank, world_size)
        self.meter = meter
        self.recorder = CallRecorder(rank)
        self.span = (inf, inf)  # when it entered and left the function
        self.result: Any = None
        self.raised: ErrorReport | None = None
        self.error: type[BaseException] | None = None
        self.groups: SimpleNamespace = interposer.no_groups()
        self._copies = copies
        self._mode = WithoutNumbers()

    # -- the interposer of this thread: see interposer.Interposer ---------------------------------------------------

    @property
    def generator(self) -> torch.Generator:
        return self.rank_state.torch

    def collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[..., Any]) -> Any:
        call = self.recorder.call(operator, arguments)
        call.times.matched = call.times.done = call.times.issued
        if self.meter is not None:
            self.meter.lend(arguments.values())  # sets their category; no transport borrows them
        tensors = list(tensors_in(arguments))
        if not any(isinstance(tensor, private.FakeTensor) for tensor in tensors):
            return execute(*arguments.values())  # integers of DDP's C++ part: as if its peers had the same ones
        self._mode.forget(tensors)
        return private.completed(operator, arguments)

    def new_group(self, group_name: str, ranks: list[int]) -> None:
        call = Call(op="new_group", group_name=group_name, ranks=tuple(ranks), source_line=learner_line())
        call.times.matched = call.times.done = call.times.issued
        self.recorder.calls.append(call)

    def not_in_group(self, op: str) -> None:
        raise NotInGroup(f"{op} was called on a group that rank {self.rank} does not belong to")

    def waiting(self, waited: Any) -> None:
        pass

    @contextlib.contextmanager
    def identity(self) -> Iterator[None]:
        with interposer.interposed(self), self.rank_state.own():
            yield

    # -- the thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with self.identity():
            try:
                self._call()
            except BaseException as error:
                self.raised, self.error = _raised(error), type(error)
            finally:
                self.span = (self.span[0], time.perf_counter())
                if dist.is_initialized():
                    dist.destroy_process_group()

    def _call(self) -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=self.rank, world_size=self.world_size)
        with contextlib.nullcontext() if self.meter is None else self.meter.watching():
            fn, args, kwargs = fake_copy(self._copies, self._mode, self._made)
            self.span = (time.perf_counter(), inf)
            with self._mode:
                meter = self.meter
                result = self.stoppably(
                    partial(fn, *args, **kwargs) if meter is None else partial(meter.call, fn, args, kwargs)
                )
        self.result = private.without_mode(result)

    def _made(self, tensor: torch.Tensor) -> None:
        if self.meter is not None:
            self.meter.resized(tensor, "set_")  # the name of the operator that unpickles tensors


def _raised(error: BaseException) -> ErrorReport:
    """Return the report of `error`; if `NoNumbers` caused it, with that error's type and message."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, NoNumbers):
        behind = behind.__cause__
    record = ErrorReport.of(error)
    return record if behind is None else replace(record, type=NoNumbers.__name__, message=str(behind))
