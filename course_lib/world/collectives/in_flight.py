"""`InFlight`: finds the learner's lines that use the tensors of a call between the call and its wait.

Until the wait, the backend may read what is sent and write what is received at any moment. So nobody else may touch the
tensors that receive, and nobody may change those that are sent. Tensors count as used where an operator reads or writes
their elements; views and shapes do not matter. Strided tensors with gaps are left out.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from ...meter import Span, overlap, spans, storage_of, tensors_in, untraced
from ..learner_code import learner_line
from ..torch_hooks import private
from .call import Progress
from .local_call import LocalCall


class Lent(NamedTuple):
    """The spans of one tensor, and a weak reference to its storage: once the backend is done, the learner may free it.
    A new storage may then get the same spans."""

    storage: weakref.ref[UntypedStorage]
    spans: list[Span]


class Loan(NamedTuple):
    """The tensors of one open call."""

    progress: Progress
    received: list[Lent]
    sent: list[Lent]


class InFlight(TorchDispatchMode):
    """The tensors of one rank's open calls; as a context, it watches the operators of the calling thread."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile functions, as without the mode: it fails for `fullgraph=True`, and later in the process, if
        it may not. The mode sees the operators of compiled code."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave `__torch_dispatch__` as it is: it is `untraced`, and torch's wrapper takes 6 µs for each operator."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[LocalCall, Loan] = {}
        self._thread = threading.get_ident()  # gloo's threads inherit the mode, and use the tensors rightly
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not watch inside the block: there, this thread may run gloo's own operators."""
        before, self._paused = self._paused, self._paused or threading.get_ident() == self._thread
        try:
            yield
        finally:
            self._paused = before

    def lend(self, local: LocalCall, operator: Any, arguments: dict[str, Any]) -> None:
        sent, received = _read_and_written(operator, arguments, local)
        self._open[local] = Loan(local.progress, _lent(received), _lent(sent))

    def give_back(self, local: LocalCall) -> None:
        self._open.pop(local, None)

    def used(self, operator: Any, arguments: dict[str, Any], local: LocalCall | None = None) -> None:
        """Note the learner's line in each open call whose tensors `operator` uses. `local` is the call of
        an operator of c10d."""
        self._used(*_read_and_written(operator, arguments, local))

    def _used(self, *tensors: list[Tensor]) -> None:
        read, written = map(list, map(spans, tensors))
        for loan in self._open.values():
            progress = loan.progress
            received, sent = _not_freed(loan.received), _not_freed(loan.sent)
            if progress.used_at is None and (overlap(read + written, received) or overlap(written, sent)):
                progress.used_at = learner_line()

    @untraced
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watched = self._open and not self._paused and threading.get_ident() == self._thread
        if watched and isinstance(func, private.HigherOrderOperator):  # it has no schema, and its operators do not
            self._used(list(tensors_in([args, kwargs])), [])  # reach the mode
        elif watched and not _leaves_elements_alone(func):
            names = [argument.name for argument in func._schema.arguments]
            self.used(func, dict(zip(names, args, strict=False)) | kwargs)
        return func(*args, **kwargs)


def _read_and_written(
    operator: Any, arguments: dict[str, Any], local: LocalCall | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that `operator` reads, and those that it writes. A c10d operator's schema does not say it: its
    first argument receives, except for a send and on the root of a broadcast."""
    read: list[Tensor] = []
    written: list[Tensor] = []
    receives = local is None or not (
        local.call.op == "send" or (local.call.op == "broadcast" and local.call.root == local.call.rank)
    )
    for place, argument in enumerate(operator._schema.arguments):
        if operator.namespace == "c10d":
            writes = place == 0 and receives
        else:
            writes = argument.alias_info is not None and argument.alias_info.is_write
        (written if writes else read).extend(tensors_in([arguments.get(argument.name)]))
    return read, written


def _lent(tensors: Iterable[Tensor]) -> list[Lent]:
    storages = [(storage_of(tensor), tensor) for tensor in tensors]
    return [Lent(weakref.ref(storage), list(spans([tensor]))) for storage, tensor in storages if storage is not None]


def _not_freed(lent: Iterable[Lent]) -> list[Span]:
    return [span for one in lent if one.storage() is not None for span in one.spans]


def _leaves_elements_alone(operator: Any) -> bool:
    name = operator._schema.name.removeprefix("aten::")
    return bool(operator.is_view or name.endswith("_like") or name.startswith("new_"))
