"""Tensors that are lent to the backend of collectives.

gloo's threads drop a tensor a moment after they say that its collective is done. Bytes that only they hold would make
every figure a matter of luck, and are no memory that another backend needs. So gloo is lent other tensors with the
same storage; where it has those still, though the collective is done, the meter waits: some 0.1 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import inf
from time import perf_counter, sleep
from typing import Any, Protocol

import torch
from torch import Tensor

from .storages import tensors_in

PATIENCE = 2.0
"""Seconds after which the backend is taken to keep a tensor for good."""


class Loan:
    """The arguments of one collective, as the backend gets them.

    Args:
        arguments: of the operator; they may hold lists of tensors, and lists of those.
    """

    def __init__(self, arguments: Iterable[Any]) -> None:
        self.arguments = [_twin(argument) for argument in arguments]
        # Kept, so that they end here, on the rank's thread. A thread of gloo's that had the last reference would say by
        # no sign when it has let go of the memory, too.
        self._tensors = [tensor for tensor in tensors_in(self.arguments) if not tensor.is_sparse]

    @property
    def held(self) -> bool:
        """Whether another has one of the tensors."""
        return any(count > _ALONE for count in _references(self._tensors))


class Progress(Protocol):
    """How far a collective is."""

    done: float
    """When it was done; inf until then."""

    delivering: bool
    """Whether its result is on its way to the rank."""


class Loans:
    """What a rank has lent, and did not have back when it last looked."""

    def __init__(self) -> None:
        self._out: list[tuple[Loan, Progress]] = []

    def add(self, loan: Loan, progress: Progress) -> None:
        """The collective of `loan` was made."""
        loan.arguments = []
        self._out.append((loan, progress))

    def settle(self) -> None:
        """Wait for what is due."""
        if not self._out:
            return
        due = [(loan, progress) for loan, progress in self._out if progress.done < inf]
        if not due:
            return
        deadline = perf_counter() + PATIENCE
        for loan, progress in due:
            while (loan.held or progress.delivering) and perf_counter() < deadline:
                sleep(5e-5)
        self._out = [lent for lent in self._out if lent not in due]


def _references(tensors: list[Tensor]) -> list[int]:
    """How many references there are to each of `tensors`. Those of C++ are one, all together."""
    return [sys.getrefcount(tensor) for tensor in tensors]


_ALONE = _references([torch.empty(0)])[0]
"""As many has a tensor that nobody else has."""


def _twin(value: Any) -> Any:
    """Another tensor with the storage of the first; of what contains tensors, a list of such. A sparse tensor is lent
    itself: gloo gives it new storages."""
    if isinstance(value, Tensor):
        return value if value.is_sparse else value.detach()
    return [_twin(item) for item in value] if isinstance(value, list | tuple) else value
