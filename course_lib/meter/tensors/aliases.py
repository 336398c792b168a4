"""Backend aliases: tensors with the same storage, given to the backend of collectives instead of the rank's tensors.

gloo's threads drop a tensor a moment after they report that its collective is done. Bytes that only gloo holds would
make every figure depend on timing. So gloo gets aliases of the rank's tensors. If gloo still holds them although the
collective is done, the meter waits, for about 0.1 ms.

A rank that goes on has a Work, which keeps the tensors of its call: on NCCL until the rank waits, on gloo until the
rank drops it. Here the aliases are kept until the first of the two, on every backend, even if the transport was faster.
If the rank drops the Work and has not waited, only the transport has the tensors, and when it ends depends on timing.
"""

import sys
from collections.abc import Iterable
from math import inf
from time import perf_counter, sleep
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .storages import tensors_in

PATIENCE = 2.0
"""Seconds after which the meter assumes that the backend keeps a tensor forever."""


class Aliases:
    """The backend aliases for the arguments of one collective.

    Args:
        arguments: of the operator; they may contain lists of tensors, and lists of lists.
    """

    def __init__(self, arguments: Iterable[Any]) -> None:
        self.arguments = [_alias(argument) for argument in arguments]
        # These references make sure that the aliases end here, on the rank's thread. If a thread of gloo dropped the
        # last reference, nothing would show when it had also released the memory.
        self._tensors = [tensor for tensor in tensors_in(self.arguments) if not tensor.is_sparse]

    @property
    def held(self) -> bool:
        """Return whether anything else references one of the aliases."""
        return any(count > _ALONE for count in _references(self._tensors))


class Progress(Protocol):
    """The progress of a collective."""

    done: float
    """When the collective was done; inf until then."""

    delivering: bool
    """Whether its result is still being passed to the rank."""


class Handle:
    """The Work of an asynchronous call. Nothing else in the course may reference it: all other references are the
    rank's."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.waited = False

    @property
    def in_use(self) -> bool:
        """Return whether the rank has the Work and has not waited for it."""
        return not self.waited and self.references > _UNSHARED

    @property
    def references(self) -> int:
        return sys.getrefcount(self.work)


class InUse(NamedTuple):
    """The aliases of one collective."""

    aliases: Aliases
    progress: Progress
    handle: Handle | None

    @property
    def is_due(self) -> bool:
        return self.progress.done < inf and (self.handle is None or not self.handle.in_use)


class AliasesInUse:
    """The aliases that the backend, or a Work of the rank's, still held when the rank last checked."""

    def __init__(self) -> None:
        self._in_use: list[InUse] = []

    def add(self, aliases: Aliases, progress: Progress, handle: Handle | None) -> None:
        aliases.arguments = []
        self._in_use.append(InUse(aliases, progress, handle))

    def settle(self) -> None:
        """Wait until the backend has dropped the aliases of all collectives that are done, and whose Work the rank has
        dropped or waited for."""
        due = {one for one in self._in_use if one.is_due}
        if not due:
            return
        deadline = perf_counter() + PATIENCE
        for aliases, progress, _ in due:
            while (aliases.held or progress.delivering) and perf_counter() < deadline:
                sleep(5e-5)
        self._in_use = [one for one in self._in_use if one not in due]

    def waited(self, work: Any) -> None:
        """Note that the rank waits for a Work."""
        for one in self._in_use:
            if one.handle is not None and one.handle.work is work:
                one.handle.waited = True


def _references(tensors: list[Tensor]) -> list[int]:
    """Return the number of references to each of `tensors`. All references from C++ count as one."""
    return [sys.getrefcount(tensor) for tensor in tensors]


_ALONE = _references([torch.empty(0)])[0]
"""The reference count of a tensor that nothing else references."""

_UNSHARED = Handle(object()).references
"""The reference count of a Work that only its handle references."""


def _alias(value: Any) -> Any:
    """Return a new tensor with the storage of the given one; for a container, a list of such tensors.

    A sparse tensor is returned itself, because gloo gives it new storages.
    """
    if isinstance(value, Tensor):
        return value if value.is_sparse else value.detach()
    return [_alias(item) for item in value] if isinstance(value, list | tuple) else value
