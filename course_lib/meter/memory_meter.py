"""The memory meter of one rank: it watches the rank's thread, keeps its ledger and finds what the bytes are for."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from .gpu import PretendedGpu, made_by_torch_next_to_parameters
from .ledger.ledger import CATEGORIES, LASTING, Block, Ledger
from .ledger.peak import peak_of
from .ledger.purposes import purposes
from .memory import CudaMemory, MemoryReport, Snapshot, StillHeld
from .optimizer_steps import StepRecorder
from .tensors.aliases import Aliases, AliasesInUse, Handle, Progress
from .tensors.graph import makes_gradient
from .tensors.holders import holders
from .tensors.storages import ORDINARY, plain, storage_of, tensors_in
from .watching import operators
from .watching.owners import Owners, gradient
from .watching.returning import Returning

MOST_OF_A_FAILURE = 1000  # changes of a failed run in its report, because a rank has little time to send it
LARGE = 1000  # a block gets its line and layout if it has at least 1/LARGE of the peak


class MemoryMeter:
    """The memory meter of one rank.

    Args:
        started, size_of: those of its `Ledger`.
        gpu_bytes: the memory of the rank's pretended GPU. Only memory on the GPU is then counted. None: all is.
    """

    def __init__(
        self, rank: int, *, started: float, size_of: Callable[[int], int], gpu_bytes: int | None = None
    ) -> None:
        self.rank = rank
        self.ledger = Ledger(size_of, started, takes_all=gpu_bytes is None)
        self._aliases_in_use = AliasesInUse()
        self.gpu = None if gpu_bytes is None else PretendedGpu(gpu_bytes, self.ledger, self._aliases_in_use.settle)
        self._size_of = size_of
        self._packed: set[torch.UntypedStorage | None] = set()  # see `packing`
        self._owners = Owners()
        self._returning: Returning | None = None  # None once the learner's function is known to run
        self._holders: dict[Block, tuple[str, ...]] = {}
        self._marks: dict[str, Snapshot] = {}
        self._marked: list[tuple[str, float]] = []
        self._end: Snapshot | None = None
        self._steps = StepRecorder()
        self._failed = False

    # -- results of operators --------------------------------------------------------------------------------------

    def made(self, result: Any, operator: str, arguments: Any = ()) -> None:
        """`operator` returned `result`, a tensor or a list or tuple with tensors. Most of them have new memory."""
        if self.gpu is not None and not self._is_on_gpu(arguments):
            return
        if type(result) is Tensor and result.layout is torch.strided and not result.is_nested:
            self._note(result, result, operator, sys._getframe(1))
        else:
            for tensor in tensors_in(result):
                for part in plain(tensor):
                    self._note(part, tensor, operator, sys._getframe(1))

    def _note(self, part: Tensor, tensor: Tensor, operator: str, caller: FrameType) -> None:
        """Record the memory of `part` if it is new. `operator` returned `tensor`, which is or contains `part`."""
        storage = storage_of(part)
        if storage is None or self.ledger.find(storage) is not None or not (nbytes := storage.nbytes()):
            return
        self._aliases_in_use.settle()
        self._make_room(nbytes)
        block = self.ledger.enter(storage, nbytes, tensor, operator)
        if self._returning is not None:
            self._returning.look(caller)
            self._returning = None
        if makes_gradient(caller.f_back):
            block.category = "gradients"
        if block.size * LARGE >= self.ledger.peak:
            block.note_place((part.dtype, part.shape), caller)

    def resized(self, tensor: Tensor | torch.UntypedStorage, operator: str) -> None:
        """Read the size and the address of `tensor`'s memory again: they may have changed."""
        storage = tensor if isinstance(tensor, torch.UntypedStorage) else storage_of(tensor)
        if storage is None:
            return
        block = self.ledger.find(storage)
        nbytes = 0 if block is None else block.nbytes
        if storage.nbytes() == nbytes or (block is None and self.gpu is not None and not self.gpu.placing):
            return
        self._aliases_in_use.settle()
        self._make_room(storage.nbytes() - nbytes)
        if block is None:
            self.ledger.enter(storage, storage.nbytes(), None, operator)
        else:
            self.ledger.resize(block, operator)

    def detached(self, tensor: Tensor) -> None:
        """`tensor.detach()` was called: by autograd, when it makes `tensor` the gradient of a leaf."""
        if makes_gradient(sys._getframe(1).f_back):
            self._assign(tensor, "gradients")

    # -- a pretended GPU -------------------------------------------------------------------------------------------

    def holds(self, tensor: Tensor) -> bool:
        """Return whether `tensor` is in memory that is counted: with a pretended GPU, whether it is on the GPU."""
        storages = map(storage_of, plain(tensor))
        return any(one in self._packed or self.ledger.find(one) is not None for one in storages)

    @contextmanager
    def packing(self, tensor: Tensor) -> Iterator[None]:
        """Let `holds` take `tensor` for the GPU's inside the block, if autograd saves it as a result of an operator
        there: `made` comes to know that result when the operator returns."""
        before, arguments = self._packed, () if self.gpu is None else operators.arguments()
        if arguments and self._is_on_gpu(arguments):
            known = {None, *(storage_of(part) for one in tensors_in(arguments) for part in plain(one))}
            self._packed = {storage_of(part) for part in plain(tensor)} - known
        try:
            yield
        finally:
            self._packed = before

    @contextmanager
    def next_to(self, arguments: Any) -> Iterator[None]:
        """Put new memory on the GPU inside the block, if one of `arguments` is there."""
        if self.gpu is None or self.gpu.placing is not None or not self._is_on_gpu(arguments):
            yield
            return
        self.gpu.placing = True
        try:
            yield
        finally:
            self.gpu.placing = None

    def _is_on_gpu(self, arguments: Any) -> bool:
        """Return whether the result of an operator with these arguments is on the GPU."""
        assert self.gpu is not None
        if self.gpu.placing is not None:
            return self.gpu.placing
        if arguments and type(arguments[0]) in ORDINARY and self.ledger.find(storage_of(arguments[0])) is not None:
            return True  # the most frequent case, in the shortest time
        tensors = list(tensors_in(arguments))
        if tensors:
            return any(map(self.holds, tensors))
        return self.gpu.used and made_by_torch_next_to_parameters()

    def _make_room(self, nbytes: int) -> None:
        """Raise the error of a GPU whose memory is full, if so many bytes more do not fit."""
        if self.gpu is not None and nbytes > 0 and not self.gpu.has_room(needed := self._size_of(nbytes)):
            held = self._snapshot()
            parts = [f"{kind} {size:,}" for kind, size in held.by_category.items() if size]
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {needed:,} bytes. The rank's pretended GPU has "
                f"{self.gpu.nbytes:,} bytes and holds {held.current_bytes:,}: {', '.join(parts) or 'nothing'}."
            )

    # -- other events ----------------------------------------------------------------------------------------------

    def found(self, one: nn.Module | Optimizer | Tensor) -> None:
        """Remember a module, an optimizer or a parameter that was made, or a parameter that got different memory."""
        self._owners.add(one)
        if isinstance(one, Parameter):
            self._assign(one, "parameters")

    def forget(self, tensor: Tensor) -> None:
        self._owners.forget(tensor)
        self.ledger.forget(tensor)

    def stepped(self, optimizer: Optimizer) -> None:
        """`optimizer.step()` has returned: its state exists, and the gradients still do."""
        self._steps.add(optimizer, self.ledger.now())
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            if (grad := gradient(param)) is not None:
                self._assign(grad, "gradients")
        for state in tensors_in(optimizer.state):
            if self.holds(state) and self._assign(state, "optimizer"):
                return  # this one is known since an earlier step, so all are

    def lend(self, arguments: Iterable[Any]) -> Aliases:
        """Return backend aliases of the tensors in `arguments`, which a collective is about to use."""
        for tensor in tensors_in(list(arguments)):
            for part in plain(tensor):
                block = self.ledger.find(storage_of(part))
                if block is not None:
                    block.guess("communication")
        aliases: Aliases = operators.unwatched(lambda: Aliases(arguments))()
        return aliases

    def lent(self, aliases: Aliases, progress: Progress, handle: Handle | None) -> None:
        """Record that the collective of `aliases` was called. `handle` is that of its Work, if the rank goes on."""
        self._aliases_in_use.add(aliases, progress, handle)

    def waited(self, work: Any) -> None:
        """Record that the rank waits for a Work."""
        self._aliases_in_use.waited(work)

    def _assign(self, tensor: Tensor, category: str) -> bool:
        """Set the persistent category of a tensor. Return whether it was known."""
        known = True
        for part in plain(tensor):
            block = self.ledger.find(storage_of(part))
            if block is not None and block.category not in LASTING:
                block.category, known = category, False
        return known

    # -- measuring -------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the calling thread inside the block.

        If it fails, take a snapshot: the exception's traceback keeps the function's variables alive.
        """
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        with operators.watching(self):
            try:
                yield
            except BaseException:
                self._failed = True
                with suppress(Exception):  # an error may have broken the GPU, and it is what the learner has to read
                    self._end = self._snapshot(holders=False)
                raise

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return `fn(*args, **kwargs)`, and take a snapshot when it returns, while its variables are alive."""
        self._returning = returning = Returning(sys._getframe())
        try:
            result = fn(*args, **kwargs)
            self._returning = None
            self._end = self._snapshot()
        finally:
            returning.release()
        return result

    def mark(self, label: str) -> None:
        """Take a snapshot. If a label is used again, the last snapshot counts."""
        self._marks[label] = snapshot = self._snapshot()
        self._marked.append((label, snapshot.seconds))
        self.ledger.marked_at = snapshot.seconds

    def _snapshot(self, *, holders: bool = True) -> Snapshot:
        ledger = self.ledger
        self._aliases_in_use.settle()
        ledger.add_up()
        ledger.notice_resized()
        by_address = purposes(ledger, self._owners)
        ledger.add_up()
        by_category = dict.fromkeys(CATEGORIES, 0)
        still_held = []
        for block in ledger.live:
            purpose = by_address.get(block.address, "other")
            by_category[purpose] += block.size
            if holders and block.category == "parameters" and purpose not in LASTING and block.size:
                still_held.append(StillHeld(nbytes=block.size, holders=self._who_holds(block)))
        return Snapshot(
            seconds=ledger.now(),
            current_bytes=ledger.current,
            peak_bytes=ledger.peak,
            by_category=by_category,
            still_held=tuple(still_held),
            cuda=CudaMemory.now(),
        )

    def _who_holds(self, block: Block) -> tuple[str, ...]:
        """Return the holders of `block`, cached: a search takes a tenth of a second, and there may be many marks."""
        if block not in self._holders:
            storage = block()
            self._holders[block] = () if storage is None else holders(storage)
        return self._holders[block]

    # -- the report ------------------------------------------------------------------------------------------------

    def report(self) -> MemoryReport | None:
        """Return the measurements of a function that has returned or failed; None if they could not be taken."""
        if self._end is None:
            return None
        return MemoryReport(
            **vars(self._end),
            rank=self.rank,
            marks=self._marks,
            marked=tuple(self._marked),
            at_peak=peak_of(self.ledger),
            optimizers=tuple(self._steps.optimizers),
            timeline=tuple(self.ledger.history.events(MOST_OF_A_FAILURE if self._failed else None)),
        )


def mark(label: str) -> None:
    """Take a snapshot of this rank's memory: `run.memory[rank].marks[label]`. Do nothing where memory is not measured.

    If a label is used again, the last snapshot counts.
    """
    if (watcher := operators.current()) is not None:
        watcher.mark(str(label))
