"""What each block is for, at one moment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .graph import saved_for_backward
from .ledger import Ledger
from .owners import Owners
from .storages import plain, storage_of


@dataclass(kw_only=True)
class Purposes:
    """What was found.

    Attributes:
        by_address: for each block that is for something, what; by the address of its storage.
        padding: bytes of parameters, gradients and optimizer that no tensor of them covers.
        borrowed: (rank, bytes) of each storage that another rank has made and this one uses; by its address.
    """

    by_address: dict[int, str] = field(default_factory=dict)
    padding: Counter[str] = field(default_factory=Counter)
    borrowed: dict[int, tuple[int, int]] = field(default_factory=dict)

    def borrowed_by_rank(self) -> dict[int, int]:
        """How many bytes are each rank's."""
        total: Counter[int] = Counter()
        for rank, nbytes in self.borrowed.values():
            total[rank] += nbytes
        return dict(total)


Maker = Callable[[torch.UntypedStorage], int | None]
"""Which other rank has made a storage, if one has."""


def purposes(ledger: Ledger, owners: Owners, maker: Maker, variables: Iterable[Tensor]) -> Purposes:
    """Find out what the blocks of `ledger` are for.

    Args:
        ledger: gets a block for what lasts and was made without an operator: by NumPy, say.
        owners: of what lasts.
        maker: who has made what is not in the ledger.
        variables: what else the rank uses.
    """
    found = Purposes()
    covered: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for category, tensor in owners.lasting():
        for part in plain(tensor):
            storage = storage_of(part)
            if storage is None or not storage.nbytes() or _is_borrowed(storage, ledger, maker, found):
                continue
            block = ledger.find(storage) or ledger.enter(storage, storage.nbytes(), None, "another library")
            block.category = found.by_address.setdefault(block.address, category)
            if category != "other":
                covered[block.address].append(_span(part))
    for tensor in variables:
        for part in plain(tensor):
            _is_borrowed(storage_of(part), ledger, maker, found)
    made = [block.tensor() for block in ledger.live if block.tensor is not None]
    for part, _ in saved_for_backward(tensor for tensor in made if tensor is not None):
        saved = ledger.find(storage_of(part))
        if saved is not None:
            found.by_address.setdefault(saved.address, "activations")
            saved.guess("activations")
    for block in ledger.live:
        if block.category == "communication":
            found.by_address.setdefault(block.address, "communication")
        if block.address in covered:
            found.padding[found.by_address[block.address]] += block.nbytes - _length(covered[block.address])
    return found


def _is_borrowed(storage: torch.UntypedStorage | None, ledger: Ledger, maker: Maker, found: Purposes) -> bool:
    """Whether another rank has made `storage`; if so, it is noted."""
    if storage is None or ledger.find(storage) is not None:
        return False
    rank = maker(storage)
    if rank is not None:
        found.borrowed[id(storage)] = (rank, storage.nbytes())
    return rank is not None


def _span(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor reaches over."""
    start = int(tensor.storage_offset())
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start * tensor.itemsize, (start + (reach if tensor.numel() else 0)) * tensor.itemsize


def _length(spans: list[tuple[int, int]]) -> int:
    """How many bytes the spans cover together."""
    total = end = 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total
