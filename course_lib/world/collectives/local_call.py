"""`LocalCall`: a call on the rank's own side, from when it is made until its result has arrived.

A rank waits in the call, or it goes on at once with a Work and waits later. The call enters the backend once every
member has called: `PendingCall` knows who has, and nothing of Works and results.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import torch

from ...meter import Handle, is_learners, storage_of, tensors_in
from ..learner_code import is_of_ddp, receiver_of_work
from ..torch_hooks import private
from .call import Call, Progress
from .values import NamedTensor

Future = torch.futures.Future[Any]

Identity = Callable[[], AbstractContextManager[None]]
"""Returns a context in which the calling thread acts as one rank."""

_WITHOUT_FUTURE = ("send", "recv", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced")
"""Ops whose gloo Work has no future."""


class _Modes(NamedTuple):
    """The gradient and inference modes of the thread that made a call, which the backend's own operators need."""

    gradients: bool
    inference: bool

    @classmethod
    def here(cls) -> Self:
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled())

    @contextmanager
    def entered(self) -> Iterator[None]:
        if self == self.here():
            yield
            return
        with torch.inference_mode(self.inference), torch.set_grad_enabled(self.gradients):
            yield


@dataclass(eq=False, kw_only=True)
class LocalCall:
    """One call of one rank."""

    progress: Progress
    execute: Callable[[], Any] | None  # hands the call to the backend, and returns its result; None once it is done
    ticket: Any = None  # what the coordinator keeps with the call
    error: Exception | None = None  # with which the backend refused the call
    future: Future | None = None  # for a rank that goes on: completes with `[result]`, or with `[exception]`
    arrived: Future | None = None  # the same for the rank: returns the result, or raises the exception
    waits: bool = True  # the rank waits in it, or in C++ that has made it
    handle: Handle | None = None  # that of its Work, if the rank goes on
    receiving: list[NamedTensor] = field(default_factory=list)  # their values are noted when the result arrives
    _modes: _Modes = field(default_factory=_Modes.here)
    _identity: Identity | None = None
    _result: Any = None
    _outputs: frozenset[int] = frozenset()  # identifies the storages that receive the result

    @property
    def call(self) -> Call:
        return self.progress.call

    # -- for the rank --------------------------------------------------------------------------------------------

    def promise(
        self, operator: Any, arguments: dict[str, Any], identity: Identity, on_arrival: "Callable[[LocalCall], object]"
    ) -> Any:
        """Return the operator's result before the call is made. The thread that delivers it acts as the rank through
        `identity`, and calls `on_arrival` with this call, unless there was an error."""
        progress = self.progress
        in_backward = private.at_end_of_backward(progress.backward_ends, progress.backward_ended)
        receiver = receiver_of_work()
        if not in_backward and receiver is None:
            progress.waited_from = self.call.issued
        self.waits = receiver is None and not in_backward and is_of_ddp()
        progress.open_handle = receiver is not None and is_learners(receiver)
        self._identity, self.future = identity, Future()
        self.arrived = self.future.then(partial(self._delivered, on_arrival))
        # While the Work lives, torch returns this object to the rank.
        result, self.handle = private.pending_result(operator, arguments, self.arrived)
        storages = map(storage_of, tensors_in(next(iter(arguments.values()))))
        self._outputs = frozenset(storage._cdata for storage in storages if storage is not None)
        return result

    def _delivered(self, on_arrival: "Callable[[LocalCall], object]", done: Future) -> Any:
        """Return the result of the rank's future, or raise its error: DDP's C++ reducer would take an exception that is
        a value (as `Future.set_exception` makes it) for its tensors, and end the process."""
        value = done.value().pop()  # so that only the rank holds it
        if isinstance(value, BaseException):
            raise value.with_traceback(None)  # that of the rank that handed all ranks' calls to the backend
        self.note_values()
        on_arrival(self)
        return value

    def is_of(self, waited: Any) -> bool:
        """Return whether `waited` is the call's Work, or a tensor that receives its result."""
        if not isinstance(waited, torch.Tensor):
            return self.handle is not None and waited is self.handle.work
        storage = storage_of(waited)
        return storage is not None and storage._cdata in self._outputs

    def result(self) -> Any:
        """Return the backend's result; start the call if nobody has. Raise the backend's error."""
        if self.execute is not None:
            self.start()
        if self.error is not None:
            raise self.error
        result, self._result = self._result, None
        return result

    def note_values(self) -> None:
        """Note the values that have arrived, if the world keeps them."""
        if self.progress.values is not None:
            self.progress.values = self.progress.values.with_received(self.receiving)
        self.receiving = []

    # -- for the coordinator -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Hand the call to the backend: every member has called."""
        assert self.execute is not None
        execute, self.execute = self.execute, None
        self.progress.matched = self.progress.now()
        try:
            with self._modes.entered():
                self._result = execute()
        except Exception as error:  # the backend refuses this rank's call
            self.error = error

    def deliver(self, error: Exception | None) -> None:
        """Complete the future, if the rank goes on: with the result when the backend has finished, or with `error`."""
        if self.future is None:
            return
        self.progress.delivering = True  # the rank waits for this before it closes its groups
        if error is not None:  # its peers' calls wait in the backend until the groups are closed
            _on_a_thread(self._complete_as_rank, error)
            return
        work, self._result = private.work_of(self._result), None
        if self.call.variant in _WITHOUT_FUTURE:
            _on_a_thread(self._deliver_end_of, work)
        else:
            self._deliver_when_done(work)

    def _deliver_end_of(self, work: Any) -> None:
        result: Any = []
        try:
            work.wait()
        except RuntimeError as error:  # a member's process died
            result = error
        self._ended(result)

    def _deliver_when_done(self, work: Any) -> None:
        def finish(done: Future) -> None:
            held.clear()
            if threading.get_ident() == here:  # which holds a lock that a callback may need
                _on_a_thread(deliver, done)
            else:
                deliver(done)

        def deliver(done: Future) -> None:
            try:
                result = _detached(done.value())
            except RuntimeError as error:
                result = error
            self._ended(result)

        here = threading.get_ident()
        held = [work]  # the backend drops a work without references, finished or not
        work.get_future().add_done_callback(finish)

    def _ended(self, result: Any) -> None:
        self.progress.done = self.progress.now()
        self._complete_as_rank(result)

    def _complete_as_rank(self, result: Any) -> None:
        """Complete the future. A callback of the learner's may make calls."""
        assert self.future is not None and self._identity is not None
        try:
            with self._identity(), self._modes.entered():
                _complete(self.future, result)
        finally:
            self.progress.delivering = False

    def call_off(self) -> None:
        """Complete the future with an error, and release the call's group, which must end on its rank's own thread.

        gloo joins its threads when a group ends. On one of these threads, that would end the process.
        """
        self.execute = None
        if self.future is not None:
            _complete(self.future, RuntimeError("the run was stopped; the message tells which rank failed"))


def _complete(future: Future, result: Any) -> None:
    """Complete `future` with `[result]`, unless another thread has completed it."""
    with suppress(RuntimeError):
        future.set_result([result])


def _on_a_thread(deliver: Callable[[Any], None], result: Any) -> None:
    threading.Thread(target=deliver, args=(result,), daemon=True).start()


def _detached(value: Any) -> Any:
    """Return new tensors for the backend's: keeping the result must not keep the tensors that the backend was lent."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    return [_detached(item) for item in value] if isinstance(value, list | tuple) else value
