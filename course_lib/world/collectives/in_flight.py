"""`InFlight`: finds the learner's lines that use the tensors of a call between the call and its wait.

Until the wait, the backend may read what is sent and write what is received at any moment. So nobody else may touch the
tensors that receive, and nobody may change those that are sent. Tensors count as used where an operator reads or writes
their elements; views and shapes do not matter. Strided tensors with gaps are left out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...meter import storage_of, tensors_in
from ..learner_code import learner_line
from .call import Times

Span = tuple[int, int, int]
"""A storage, with the first byte of a tensor in it and the byte behind its last."""


class Loan(NamedTuple):
    """The tensors of one open call: their spans, and the tensors, so that no other tensor gets their memory."""

    times: Times
    received: list[Span]
    sent: list[Span]
    tensors: list[Tensor]


class InFlight(TorchDispatchMode):
    """The tensors of one rank's open calls; as a context, it watches the operators of the calling thread."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[Any, Loan] = {}
        self._thread = threading.get_ident()  # gloo's threads inherit the mode, and use the tensors rightly

    def lend(self, call: Any, times: Times, operator: Any, arguments: dict[str, Any]) -> None:
        """Watch the tensors of `call` from now on. A c10d operator's first argument receives, except for a send."""
        first, *others = (list(_spans(tensors_in([value]))) for value in arguments.values())
        sends = "send" in operator._schema.name
        received, sent = ([], [first, *others]) if sends else (first, others)
        self._open[call] = Loan(times, received, list(chain(*sent)), list(tensors_in(arguments)))

    def give_back(self, call: Any) -> None:
        """Stop watching the tensors of `call`."""
        self._open.pop(call, None)

    def used(self, operator: Any, arguments: Iterable[Any]) -> None:
        """Note the learner's line in each open call whose tensors `operator` uses."""
        read: list[Span] = []
        written: list[Span] = []
        for argument, value in zip(operator._schema.arguments, arguments, strict=False):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            (written if writes else read).extend(_spans(tensors_in([value])))
        for loan in self._open.values():
            if loan.times.used_at is None and (_overlap(read + written, loan.received) or _overlap(written, loan.sent)):
                loan.times.used_at = learner_line()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._open and threading.get_ident() == self._thread and not _leaves_elements_alone(func):
            self.used(func, args)
        return func(*args, **kwargs or {})


def _leaves_elements_alone(operator: Any) -> bool:
    name = operator._schema.name.removeprefix("aten::")
    return bool(operator.is_view or name.endswith("_like") or name.startswith("new_"))


def _spans(tensors: Iterable[Tensor]) -> Iterator[Span]:
    for tensor in tensors:
        storage = storage_of(tensor)
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if storage is not None and tensor.numel() == reach:
            start = int(tensor.storage_offset()) * tensor.itemsize
            yield storage._cdata, start, start + reach * tensor.itemsize


def _overlap(some: Iterable[Span], others: Iterable[Span]) -> bool:
    others = list(others)
    return any(one[0] == other[0] and one[1] < other[2] and other[1] < one[2] for one in some for other in others)
