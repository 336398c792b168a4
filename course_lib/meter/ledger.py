"""The books of one rank: which storages it has made, which of them live, and what that came to at each moment.

    storage     torch's word for the memory behind tensors: views, and tied parameters, share one
    Block       one storage, from when it got its size to when it lost it. A storage that is resized begins a new one
    event       a block comes or goes. The first time that a block is among the events it came, the second it went
    current     bytes of the blocks that live;  peak: the most that there ever were

Entering an event is all that happens while the learner's code runs; events are added up when somebody asks. A block
is a weak reference to its storage, whose callback, on whichever thread drops the last tensor, is `list.append`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from .history import History

BATCH = 4096
"""Events that may wait to be added up."""

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "communication", "other")
"""What memory is for. Each block counts once, in the first that fits; so they add up to the total, exactly.

    parameters     behind a parameter of a module, or a tensor that an optimizer updates
    gradients      behind the `.grad` of one of those
    optimizer      the optimizer's state; so are fp32 masters, of a model whose own parameters are of a narrower dtype
    activations    saved for backward
    communication  handed to a collective; DDP's buckets
    other          whatever else: inputs, results, temporaries
"""


LASTING = ("parameters", "gradients", "optimizer")
"""Those of what is there for itself. They go before the others, which say what it is there for at the moment."""


class Block(weakref.ref[torch.UntypedStorage]):
    """The memory of one storage. Called, it gives the storage; None once that is freed.

    Attributes:
        address: the storage's id.
        nbytes: what was asked for;  size: what the allocator gave.
        operator: what made it;  line: the learner's line that called it, as (filename, line, function), if known.
        layout: dtype and shape of the tensor that it was made for, if known.
        seconds: when, on the clock of `perf_counter`.
        in_forward: whether autograd was recording then.
        tensor: the tensor that it was made for.
        category: one of `LASTING`, or, as a guess, "communication" or "activations"; None when nothing is known.
        told: the category under which a condensed history has it.
        number: its place in the order in which blocks came; 0 before that is known, -1 when it has gone.
    """

    __slots__ = (
        "address",
        "category",
        "in_forward",
        "layout",
        "line",
        "nbytes",
        "number",
        "operator",
        "seconds",
        "size",
        "tensor",
        "told",
    )

    address: int
    nbytes: int
    size: int
    operator: str
    line: tuple[str, int, str] | None
    layout: tuple[torch.dtype, torch.Size] | None
    seconds: float
    in_forward: bool
    tensor: weakref.ref[Tensor] | None
    category: str | None
    told: str | None
    number: int

    def guess(self, category: str) -> None:
        """Say what it seems to be there for, where nothing is known."""
        if self.category is None:
            self.category = category


class Ledger:
    """The blocks of one rank.

    Args:
        size_of: how many bytes the allocator gives for how many that are asked for.
    """

    def __init__(self, size_of: Callable[[int], int]) -> None:
        self.current = 0
        self.peak = 0
        self.peak_block: Block | None = None  # the one that made it the peak
        self.history = History()
        self._size_of = size_of
        self._events: list[Block] = []
        self._gone = self._events.append
        self._live: dict[int, Block] = {}  # by address; a block that went stays until its event is added up
        self._count = 0
        self._peak_count = 0  # how many had come when the peak was reached
        self._last: Block | None = None  # the one that came last
        self._gone_since_peak: list[Block] = []

    def find(self, storage: Any) -> Block | None:
        """The block of `storage`, if this rank made it."""
        block = self._live.get(id(storage))
        return block if block is not None and block() is storage else None

    def enter(self, storage: torch.UntypedStorage, nbytes: int, tensor: Tensor | None, operator: str) -> Block:
        """A storage of `nbytes` has come, or has got this new size."""
        block = Block(storage, self._gone)
        block.address = address = id(storage)
        block.nbytes = nbytes
        block.size = self._size_of(nbytes)
        block.operator = operator
        block.line = block.layout = block.category = block.told = None
        block.seconds = perf_counter()
        block.in_forward = torch.is_grad_enabled()
        block.tensor = None if tensor is None else weakref.ref(tensor)
        block.number = 0
        self._live[address] = block
        self._events.append(block)
        if len(self._events) > BATCH:
            self.add_up()
        return block

    def resize(self, block: Block, operator: str) -> Block:
        """The storage of `block` has got a new size."""
        storage = block()
        assert storage is not None
        self._events.append(block)
        new = self.enter(storage, storage.nbytes(), None, operator)
        new.category, new.in_forward, new.tensor = block.category, block.in_forward, block.tensor
        return new

    def notice_resized(self) -> None:
        """Enter what has got a new size unseen: as the `out=` of an operator, too small for its result."""
        for block in self.live:
            storage = block()
            if storage is not None and storage.nbytes() != block.nbytes:
                self.resize(block, block.operator)

    def add_up(self) -> None:
        """Bring `current` and `peak` up to date."""
        # One loop, in which names are local: it runs twice for each block, while other ranks wait for the GIL.
        events, history, last = self._events, self.history.add, self._last
        current, peak = self.current, self.peak
        count = len(events)  # other threads may append meanwhile
        for block in events[:count]:
            if block.number == 0:  # came
                self._count += 1
                block.number = self._count
                last = block
                current += block.size
                history(block.seconds, block, block.size, current)
                if current > peak:
                    peak, self.peak_block, self._peak_count = current, block, self._count
                    self._gone_since_peak.clear()
            elif block.number > 0:  # went
                assert last is not None
                if self._live.get(block.address) is block:
                    del self._live[block.address]
                if block.in_forward and not last.in_forward:  # freed by backward: it was kept for that
                    block.guess("activations")
                if block.number <= self._peak_count:
                    self._gone_since_peak.append(block)
                block.number = -1
                current -= block.size
                # A callback brings no time; it is that of the last event that has one, or later.
                history(last.seconds, block, -block.size, current)
        self._last, self.current, self.peak = last, current, peak
        del events[:count]

    @property
    def live(self) -> list[Block]:
        """The blocks that live; they add up to `current`."""
        return list(self._live.values())

    @property
    def at_peak(self) -> list[Block]:
        """The blocks that lived when the peak was reached."""
        still = [block for block in self._live.values() if block.number <= self._peak_count]
        return [*still, *self._gone_since_peak]
