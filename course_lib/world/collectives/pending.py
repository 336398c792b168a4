"""One meeting: the calls of a collective or of a message, from the first that comes to the moment they take place."""

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
"""Makes the calling thread a certain rank."""

_WITHOUT_FUTURE = ("send", "recv", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced")
"""Ops whose Work of gloo's has no future to chain."""


@dataclass(eq=False, kw_only=True)
class PendingCall:
    """The calls of one collective or one message, one for each member.

    Attributes:
        members: the ranks that must come.
        any_member: one of them is enough; for a recv from any rank.
        broken: the calls never take place: they do not fit, or a member has died.
        calls: of those who have come.
        execute: hands a rank's call to the backend, and returns what its operator returns.
        results: what it returned; for ranks that wait in the call.
        errors: what it raised instead.
        futures: for ranks that go on, and come back for the result.
        identities: of those ranks, for the threads that run the callbacks of their futures.
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
        """Members who have not come."""
        return self.members - self.calls.keys()

    @property
    def open(self) -> bool:
        """Whether the calls do not take place: not all have come, or they never will. Who waits goes on waiting."""
        return self.broken or bool(self.missing)

    def hopeless_without(self, ranks: set[int]) -> bool:
        """Whether it can never take place if none of `ranks` comes."""
        if self.any_member:
            return bool(self.missing) and self.missing <= ranks
        return not self.missing.isdisjoint(ranks)

    def disagreement(self, call: Call) -> str:
        """The property in which `call` differs from one that is here; empty when it fits."""
        return next(filter(None, (difference(theirs, call) for theirs in self.calls.values())), "")

    def take_place(self) -> None:
        """Hand all calls to the backend. Those who hold futures get theirs when the backend has finished."""
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
        """Free those who wait for futures, and what the calls hold: the groups among it must end on their ranks' own
        threads. On one of gloo's, which a group joins when it ends, that would end the process."""
        self.execute.clear()
        for future in self.futures.values():
            _complete(future, RuntimeError("the run was stopped; the message tells which rank failed"))


def delivered(done: Future) -> Any:
    """What a rank's future gives. Raised here, an error is one for torch's C++ too: DDP's reducer would take an
    exception that is kept as a value (as `Future.set_exception` does) for its tensors, and end the process."""
    value = done.value().pop()  # so that nobody but the rank has it
    if isinstance(value, BaseException):
        raise value
    return value


def _complete(future: Future, result: Any) -> None:
    """Let `future` give `result`, in a list of one; unless it has been completed, maybe at this very moment."""
    with suppress(RuntimeError):
        future.set_result([result])


def _end_of(work: Any) -> Any:
    """What the future of a `work` that has none of its own gives. Everyone's call is under way, so this is short."""
    try:
        work.wait()
    except RuntimeError as error:  # a member's process died
        return error
    return []


def _chain(work: Any, future: Future, times: Times, identity: Identity) -> None:
    """Let `future` end as the backend's `work` does: with its value, or with the error."""

    def finish(done: Future) -> None:
        held.clear()
        times.done = time.perf_counter()
        if threading.get_ident() == here:  # another rank's thread, which holds the lock that a callback may need
            threading.Thread(target=deliver, args=(done,), daemon=True).start()
        else:
            deliver(done)

    def deliver(done: Future) -> None:
        try:
            result = _again(done.value())
        except RuntimeError as error:
            result = error
        with identity():
            _complete(future, result)
        times.delivering = False

    times.delivering = True
    here = threading.get_ident()
    held = [work]  # the backend forgets a work whose last reference goes, finished or not
    work.get_future().add_done_callback(finish)


def _again(value: Any) -> Any:
    """The backend's tensors as tensors of their own: what it was lent is not kept by who keeps the result."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    return [_again(item) for item in value] if isinstance(value, list | tuple) else value


def difference(one: Call, other: Call) -> str:
    """The first property in which two calls of one meeting must agree and do not; empty when they agree."""
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
    """The first (sender, receiver) of an all-to-all whose sizes do not fit; empty when all do."""
    for sender, call in calls.items():
        for position, receiver in enumerate(call.ranks if call.splits else ()):
            theirs = calls[receiver]
            assert call.splits is not None and theirs.splits is not None
            if call.splits[0][position] != theirs.splits[1][call.ranks.index(sender)]:
                return (sender, receiver)
    return ()
