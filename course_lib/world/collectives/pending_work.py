"""The Work of an asynchronous call: a rank gets it at once and waits for the result later."""

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
    """The future result of a call.

    Attributes:
        work: the Work. While it lives, torch returns this object to the rank.
        future: returns the result, or raises the error of the call.
        outputs: identifies the storages that receive the result.
    """

    work: Any
    future: Future
    outputs: frozenset[int]

    def is_of(self, waited: Any) -> bool:
        """Return whether `waited` is the Work, or a tensor that receives the result."""
        if not isinstance(waited, torch.Tensor):
            return waited is self.work
        storage = storage_of(waited)
        return storage is not None and storage._cdata in self.outputs


class Promises(Generic[_Pending]):
    """The promises of one rank, each with the data that its backend needs for waiting.

    A promise whose call failed stays: torch's C++ waits for a Work without reading its error, so `Promise.future` must
    raise it at each wait.
    """

    def __init__(self) -> None:
        self._pending: dict[Promise, _Pending] = {}

    def add(self, promise: Promise, pending: _Pending) -> None:
        """Keep `promise` until its result has arrived."""
        self._pending[promise] = pending
        promise.future.add_done_callback(partial(self._arrived, promise))

    def of(self, waited: Any) -> list[tuple[Promise, _Pending]]:
        """Return the promises for `waited`, a Work or a tensor."""
        return [(promise, pending) for promise, pending in list(self._pending.items()) if promise.is_of(waited)]

    def _arrived(self, promise: Promise, done: Future) -> None:
        with suppress(RuntimeError):
            done.value()
            del self._pending[promise]


def pending_work(
    pending: PendingCall, rank: int, call: Call, operator: Any, arguments: dict[str, Any], identity: Identity
) -> tuple[Any, Promise]:
    """Return the result of `operator` for `rank` before `pending` proceeds, and its promise. The thread that delivers
    the result acts as the rank through `identity`."""
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
