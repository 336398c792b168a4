"""`PendingCall`: the calls of one collective or message, until the backend has all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from ..torch_hooks import private
from .call import Call, Times

Future = torch.futures.Future[Any]

Identity = Callable[[], AbstractContextManager[None]]
"""Returns a context in which the calling thread acts as one rank."""

_WITHOUT_FUTURE = ("send", "recv", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced")
"""Ops whose gloo Work has no future."""


@dataclass(eq=False, kw_only=True)
class PendingCall:
    """The calls of one collective or one message, one for each member.

    Attributes:
        members: the ranks that must call.
        any_member: one of them is enough, for a recv from any rank.
        broken: the calls can never proceed: they do not match, or a member has died.
        calls: the calls that have arrived, by rank.
        execute: hands a rank's call to the backend, and returns the operator's result.
        results: these results, for ranks that wait in the call.
        errors: exceptions that `execute` raised.
        futures: for ranks that go on and fetch the result later.
        identities: of these ranks, for the threads that run the callbacks of their futures.
    """

    members: frozenset[int]
    any_member: bool = False
    broken: bool = False
    calls: dict[int, Call] = field(default_factory=dict)
    execute: dict[int, Callable[[], Any]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    futures: dict[int, Future] = field(default_factory=dict)
    identities: dict[int, Identity] = field(default_factory=dict)

    @property
    def missing(self) -> frozenset[int]:
        """Return the members that have not called."""
        return self.members - self.calls.keys()

    @property
    def open(self) -> bool:
        """Return whether ranks must still wait: members are missing, or the calls can never proceed."""
        return self.broken or bool(self.missing)

    def hopeless_without(self, ranks: set[int]) -> bool:
        """Return whether the calls can never proceed unless one of `ranks` calls."""
        if self.any_member:
            return bool(self.missing) and self.missing <= ranks
        return not self.missing.isdisjoint(ranks)

    def disagreement(self, call: Call) -> str:
        """Return the property in which `call` differs from a call that has arrived; empty if it matches."""
        return next(filter(None, (difference(theirs, call) for theirs in self.calls.values())), "")

    def take_place(self) -> None:
        """Hand all calls to the backend. Futures complete when the backend has finished."""
        matched = time.perf_counter()
        for rank, call in self.calls.items():
            call.times.matched = matched
            try:
                self.results[rank] = self.execute[rank]()
            except Exception as error:  # the backend refuses this rank's call
                self.errors[rank] = error
        self.execute.clear()
        for rank, future in self.futures.items():
            call = self.calls[rank]
            if self.errors:  # its peers' calls wait in the backend until the groups are closed
                _complete(future, next(iter(self.errors.values())))
                continue
            work = private.work_of(self.results.pop(rank))
            if call.op in _WITHOUT_FUTURE:
                result = _end_of(work)
                call.times.done = time.perf_counter()
                _complete(future, result)
            else:
                _chain(work, future, call.times, self.identities[rank])

    def call_off(self) -> None:
        """Complete all futures with an error, and release the calls' groups, which must end on their ranks' own
        threads.

        gloo joins its threads when a group ends. On one of these threads, that would end the process.
        """
        self.execute.clear()
        for future in self.futures.values():
            _complete(future, RuntimeError("the run was stopped; the message tells which rank failed"))


def delivered(done: Future) -> Any:
    """Return the result of a rank's future, or raise its error: DDP's C++ reducer would take an exception that is a
    value (as `Future.set_exception` makes it) for its tensors, and end the process."""
    value = done.value().pop()  # so that only the rank holds it
    if isinstance(value, BaseException):
        raise value
    return value


def _complete(future: Future, result: Any) -> None:
    """Complete `future` with `[result]`, unless another thread has completed it."""
    with suppress(RuntimeError):
        future.set_result([result])


def _end_of(work: Any) -> Any:
    """Return the result of a `work` without a future. Every member's call is running, so the wait is short."""
    try:
        work.wait()
    except RuntimeError as error:  # a member's process died
        return error
    return []


def _chain(work: Any, future: Future, times: Times, identity: Identity) -> None:
    """Complete `future` when the backend's `work` ends, with its value or its error."""

    def finish(done: Future) -> None:
        held.clear()
        times.done = time.perf_counter()
        if threading.get_ident() == here:  # another rank's thread: it holds a lock that a callback may need
            threading.Thread(target=deliver, args=(done,), daemon=True).start()
        else:
            deliver(done)

    def deliver(done: Future) -> None:
        try:
            result = _detached(done.value())
        except RuntimeError as error:
            result = error
        with identity():
            _complete(future, result)
        times.delivering = False

    times.delivering = True
    here = threading.get_ident()
    held = [work]  # the backend drops a work without references, finished or not
    work.get_future().add_done_callback(finish)


def _detached(value: Any) -> Any:
    """Return new tensors for the backend's: keeping the result must not keep the tensors that the backend was lent."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    return [_detached(item) for item in value] if isinstance(value, list | tuple) else value


def difference(one: Call, other: Call) -> str:
    """Return the first property in which two calls of one pending call disagree; empty if they agree."""
    if {one.op, other.op} == {"send", "recv"}:
        checks: tuple[tuple[str, Any, Any], ...] = (
            ("dtype", one.dtype, other.dtype),
            ("number of elements", one.numels, other.numels),
        )
    elif one.op != other.op:
        return "collective"
    else:
        checks = (
            ("members", one.ranks, other.ranks),
            ("root", one.root, other.root),
            ("reduction", one.reduce_op, other.reduce_op),
            ("dtype", one.dtype, other.dtype),
            ("layout", one.layout, other.layout),
        )
        if one.splits is None:
            checks += (("number of elements", one.numels, other.numels), ("shape", one.shapes, other.shapes))
    return next((name for name, mine, theirs in checks if mine != theirs), "")


def uneven_splits(calls: dict[int, Call]) -> tuple[int, ...]:
    """Return the first (sender, receiver) of an all-to-all whose sizes disagree; empty if all agree."""
    for sender, call in calls.items():
        for position, receiver in enumerate(call.ranks if call.splits else ()):
            theirs = calls[receiver]
            assert call.splits is not None and theirs.splits is not None
            if call.splits[0][position] != theirs.splits[1][call.ranks.index(sender)]:
                return (sender, receiver)
    return ()
