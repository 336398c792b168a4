"""A rank's part in a call that it does not wait for: what it gets, to come back for the result."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from ...meter import storage_of, tensors_in
from ..learner_code import called_from_python
from ..torch_hooks import private
from .call import Call
from .pending import Future, Identity, PendingCall, delivered

_Pending = TypeVar("_Pending")


@dataclass(frozen=True, eq=False, kw_only=True)
class Promise:
    """The result of a call, before it is there.

    Attributes:
        work: the Work. As long as it lives, torch hands this very object to the rank.
        future: gives the result, or raises the error of the call.
        outputs: identifies the storages that the result is written to.
    """

    work: Any
    future: Future
    outputs: frozenset[int]

    def is_of(self, waited: Any) -> bool:
        """Whether `waited` is the Work, or a tensor with the result."""
        if not isinstance(waited, torch.Tensor):
            return waited is self.work
        storage = storage_of(waited)
        return storage is not None and storage._cdata in self.outputs


class Promises(Generic[_Pending]):
    """The promises of one rank, each with what its backend needs to wait for it.

    A promise whose call failed stays: torch's C++ waits for a Work without looking at its error, so `Promise.future`
    must raise the error at each wait.
    """

    def __init__(self) -> None:
        self._pending: dict[Promise, _Pending] = {}

    def add(self, promise: Promise, pending: _Pending) -> None:
        """Keep `promise` until its result is there."""
        self._pending[promise] = pending
        promise.future.add_done_callback(partial(self._arrived, promise))

    def of(self, waited: Any) -> list[tuple[Promise, _Pending]]:
        """The promises behind `waited`, a Work or a tensor."""
        return [(promise, pending) for promise, pending in list(self._pending.items()) if promise.is_of(waited)]

    def _arrived(self, promise: Promise, done: Future) -> None:
        with suppress(RuntimeError):
            done.value()
            del self._pending[promise]


def pending_work(
    pending: PendingCall, rank: int, call: Call, operator: Any, arguments: dict[str, Any], identity: Identity
) -> tuple[Any, Promise]:
    """What `operator` returns to `rank` before `meeting` takes place, and the promise in it. `identity` is for the
    thread that will deliver the result."""
    in_backward = private.at_end_of_backward(call.times.wait_begins, call.times.wait_ends)
    if not in_backward and not called_from_python():
        call.times.waited_from = call.times.issued
    pending.futures[rank] = Future()
    pending.identities[rank] = identity
    future = pending.futures[rank].then(delivered)
    result, work = private.pending_result(operator, arguments, future)
    storages = map(storage_of, tensors_in(next(iter(arguments.values()))))
    outputs = frozenset(storage._cdata for storage in storages if storage is not None)
    return result, Promise(work=work, future=future, outputs=outputs)
