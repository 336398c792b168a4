"""`InFlight`: finds the learner's lines that use the tensors of a call between the call and its wait.

Until the wait, the backend may read what is sent and write what is received at any moment. So nobody else may touch the
tensors that receive, and nobody may change those that are sent. Tensors count as used where an operator reads or writes
their elements; views and shapes do not matter. Strided tensors with gaps are left out.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...meter import Span, overlap, spans, tensors_in
from ..learner_code import learner_line
from .call import Progress
from .local_call import LocalCall


class Loan(NamedTuple):
    """The tensors of one open call: their spans, and the tensors, so that no other tensor gets their memory."""

    progress: Progress
    received: list[Span]
    sent: list[Span]
    tensors: list[Tensor]


class InFlight(TorchDispatchMode):
    """The tensors of one rank's open calls; as a context, it watches the operators of the calling thread."""

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
        self._open[local] = Loan(local.progress, received, sent, list(tensors_in(arguments)))

    def give_back(self, local: LocalCall) -> None:
        self._open.pop(local, None)

    def used(self, operator: Any, arguments: dict[str, Any], local: LocalCall | None = None) -> None:
        """Note the learner's line in each open call whose tensors `operator` uses. `local` is the call of
        an operator of c10d."""
        read, written = _read_and_written(operator, arguments, local)
        for loan in self._open.values():
            progress = loan.progress
            if progress.used_at is None and (overlap(read + written, loan.received) or overlap(written, loan.sent)):
                progress.used_at = learner_line()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watched = self._open and not self._paused and threading.get_ident() == self._thread
        if watched and not _leaves_elements_alone(func):
            names = [argument.name for argument in func._schema.arguments]
            self.used(func, dict(zip(names, args, strict=False)) | kwargs)
        return func(*args, **kwargs)


def _read_and_written(
    operator: Any, arguments: dict[str, Any], local: LocalCall | None
) -> tuple[list[Span], list[Span]]:
    """Return the spans that `operator` reads, and those that it writes. A c10d operator's schema does not say it: its
    first argument receives, except for a send and on the root of a broadcast."""
    read: list[Span] = []
    written: list[Span] = []
    receives = local is None or not (
        local.call.op == "send" or (local.call.op == "broadcast" and local.call.root == local.call.rank)
    )
    for place, argument in enumerate(operator._schema.arguments):
        if operator.namespace == "c10d":
            writes = place == 0 and receives
        else:
            writes = argument.alias_info is not None and argument.alias_info.is_write
        (written if writes else read).extend(spans(tensors_in([arguments.get(argument.name)])))
    return read, written


def _leaves_elements_alone(operator: Any) -> bool:
    name = operator._schema.name.removeprefix("aten::")
    return bool(operator.is_view or name.endswith("_like") or name.startswith("new_"))
