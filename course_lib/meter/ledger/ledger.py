"""The ledger of one rank: the storages that it made, which of them are live, and the bytes held at each moment.

    storage     torch's word for the memory behind tensors: views, and tied parameters, share one
    Block       one storage with one size; a resized storage becomes a new block
    event       an allocation or a free: a block's first event is its allocation, its second is its free
    current     bytes of the live blocks;  peak: the highest value of `current`

While the learner's code runs, events are only recorded. They are added up when a result is needed. A block is a weak
reference to its storage. Its callback is `list.append`, on whichever thread drops the last tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import distributed

from ..source_line import SourceLine, is_learners
from .history import History

BATCH = 4096  # the number of recorded events above which they are added up

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "communication", "other")
"""The purposes of memory. Each block counts once, in the first category that fits, so the categories sum to the total.

    parameters     behind a parameter of a module, or a tensor that an optimizer updates; gathered ones too
    gradients      behind the `.grad` of one of those
    optimizer      the optimizer's state, and fp32 masters of a model whose own parameters have a narrower dtype
    activations    saved for backward
    communication  passed to a collective; DDP's buckets
    other          everything else: inputs, results, temporaries
"""


LASTING = ("parameters", "gradients", "optimizer")
"""Categories of persistent state. They take precedence over the transient ones."""

_MAKE_BUCKETS = ("_ddp_init_helper", "_pre_forward")  # the functions of DDP from which its C++ part allocates buckets


class Block(weakref.ref[torch.UntypedStorage]):
    """The memory of one storage. Calling the block returns the storage, or None once it is freed."""

    address: int  # the storage's id
    nbytes: int  # the bytes requested
    size: int  # the bytes that the allocator used
    operator: str  # the operator that made it
    line: SourceLine | None  # the learner's line that called it
    layout: tuple[torch.dtype, torch.Size] | None  # of the tensor that it was made for
    seconds: float  # when it was made, from the start of the run
    in_forward: bool  # whether autograd was recording then
    tensor: weakref.ref[Tensor] | None  # the tensor that it was made for
    category: str | None  # one of `LASTING`, or a guess, "communication" or "activations"; None: nothing is known
    counted_as: str | None  # the category under which a condensed history counts the block
    number: int  # its place in the order of allocations; 0 while its allocation is not added up, -1 after its free is

    __slots__ = tuple(__annotations__)  # which Python 3.14 has here only with the import of annotations above
    __eq__ = object.__eq__  # a weak reference compares and hashes its storage, which may be gone
    __hash__ = object.__hash__

    def guess(self, category: str) -> None:
        """Set the category, unless one is known."""
        if self.category is None:
            self.category = category

    def note_place(self, layout: tuple[torch.dtype, torch.Size], frame: FrameType | None) -> None:
        """Set the layout, the line from the stack of `frame`, and the category if DDP made the block for a bucket."""
        self.layout = layout
        while frame is not None:
            code = frame.f_code
            if is_learners(code):
                self.line = SourceLine.of(frame)
                return
            if code.co_name in _MAKE_BUCKETS and code.co_filename == distributed.__file__:
                self.guess("communication")
            frame = frame.f_back


class Ledger:
    """The blocks of one rank.

    Args:
        size_of: maps requested bytes to the bytes that the allocator uses.
        started: when the run began, on the clock of `perf_counter`.
        takes_all: whether memory counts that no operator of the rank made, if a parameter or its state is in it.
    """

    def __init__(self, size_of: Callable[[int], int], started: float, *, takes_all: bool = True) -> None:
        self.takes_all = takes_all
        self.current = 0
        self.peak = 0
        self.highest = 0  # the peak since someone has set it back
        self.peak_block: Block | None = None  # the block whose allocation reached the peak
        self.history = History()
        self._size_of, self._started = size_of, started
        self._events: list[Block] = []
        self._gone = self._events.append
        self._live: dict[int, Block] = {}  # by address; a freed block stays until its event is added up
        self._count = 0
        self._peak_count = 0  # how many blocks had been allocated when the peak was reached
        self._last: Block | None = None  # the latest allocation
        self.marked_at = 0.0  # when the latest mark was made: a later free is not dated before it
        self._gone_since_peak: list[Block] = []

    def now(self) -> float:
        return perf_counter() - self._started

    def find(self, storage: Any) -> Block | None:
        """Return the block of `storage`, or None if this rank did not make it."""
        block = self._live.get(id(storage))
        return block if block is not None and block() is storage else None

    def forget(self, tensor: Tensor) -> None:
        for block in (*self._live.values(), *self._events):
            if block.tensor is not None and block.tensor() is tensor:
                block.tensor = None

    def enter(self, storage: torch.UntypedStorage, nbytes: int, tensor: Tensor | None, operator: str) -> Block:
        """Record a new storage of `nbytes`, or a new size of a storage."""
        block = Block(storage, self._gone)
        block.address = address = id(storage)
        block.nbytes = nbytes
        block.size = self._size_of(nbytes)
        block.operator = operator
        block.line = block.layout = block.category = block.counted_as = None
        block.seconds = self.now()
        block.in_forward = torch.is_grad_enabled()
        block.tensor = None if tensor is None else weakref.ref(tensor)
        block.number = 0
        self._live[address] = block
        self._events.append(block)
        if len(self._events) > BATCH:
            self.add_up()
        return block

    def resize(self, block: Block, operator: str) -> Block:
        """Record that the storage of `block` has a new size."""
        storage = block()
        assert storage is not None
        self._events.append(block)
        new = self.enter(storage, storage.nbytes(), None, operator)
        new.category, new.in_forward, new.tensor = block.category, block.in_forward, block.tensor
        return new

    def notice_resized(self) -> None:
        """Record sizes that changed without an event, such as an `out=` tensor that was too small for its result."""
        for block in self.live:
            storage = block()
            if storage is not None and storage.nbytes() != block.nbytes:
                self.resize(block, block.operator)

    def add_up(self) -> None:
        """Add up the recorded events, so that `current` and `peak` are up to date."""
        # One loop with local names: it runs twice for each block, while other ranks wait for the GIL.
        events, history, last = self._events, self.history.add, self._last
        current, peak, highest = self.current, self.peak, self.highest
        count = len(events)  # other threads may append meanwhile
        for block in events[:count]:
            if block.number == 0:  # allocated
                self._count += 1
                block.number = self._count
                last = block
                current += block.size
                history(block.seconds, block, block.size, current)
                if current > highest:
                    highest = current
                    if current > peak:
                        peak, self.peak_block, self._peak_count = current, block, self._count
                        self._gone_since_peak.clear()
            elif block.number > 0:  # freed
                assert last is not None
                if self._live.get(block.address) is block:
                    del self._live[block.address]
                if block.in_forward and not last.in_forward:  # freed by backward, so it was saved for backward
                    block.guess("activations")
                if block.number <= self._peak_count:
                    self._gone_since_peak.append(block)
                block.number = -1
                current -= block.size
                # A callback has no time; use that of the latest allocation or mark.
                history(last.seconds if last.seconds > self.marked_at else self.marked_at, block, -block.size, current)
        self._last, self.current, self.peak, self.highest = last, current, peak, highest
        del events[:count]

    @property
    def live(self) -> list[Block]:
        """The live blocks. Their sizes sum to `current`."""
        return list(self._live.values())

    @property
    def at_peak(self) -> list[Block]:
        """The blocks that were live when the peak was reached."""
        still = [block for block in self._live.values() if block.number <= self._peak_count]
        return [*still, *self._gone_since_peak]
