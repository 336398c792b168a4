"""The purpose of each block of memory at one moment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..tensors.graph import saved_for_backward
from ..tensors.storages import plain, storage_of
from ..watching.owners import Owners
from .ledger import Ledger


@dataclass(kw_only=True)
class Purposes:
    """The purposes that were found.

    Attributes:
        by_address: the category of each block that has one, by the address of its storage.
        padding: bytes of parameters, gradients and optimizer that no tensor of theirs covers.
        borrowed: (rank, bytes) of each storage that another rank made and this rank uses, by its address.
    """

    by_address: dict[int, str] = field(default_factory=dict)
    padding: Counter[str] = field(default_factory=Counter)
    borrowed: dict[int, tuple[int, int]] = field(default_factory=dict)

    def borrowed_by_rank(self) -> dict[int, int]:
        """Return the borrowed bytes, by the rank that made them."""
        total: Counter[int] = Counter()
        for rank, nbytes in self.borrowed.values():
            total[rank] += nbytes
        return dict(total)


Maker = Callable[[torch.UntypedStorage], int | None]
"""Returns the rank that made a storage, if it is not this rank."""


def purposes(ledger: Ledger, owners: Owners, maker: Maker, variables: Iterable[Tensor]) -> Purposes:
    """Find the purposes of the blocks in `ledger`.

    Args:
        ledger: the ledger; persistent tensors that no operator made (NumPy did, for example) are added to it.
        owners: the owners of persistent state.
        maker: returns the rank that made a storage that is not in the ledger.
        variables: tensors that the rank uses besides.
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
    """Return whether another rank made `storage`, and record it in `found` if so."""
    if storage is None or ledger.find(storage) is not None:
        return False
    rank = maker(storage)
    if rank is not None:
        found.borrowed[id(storage)] = (rank, storage.nbytes())
    return rank is not None


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the first and last byte of its storage that a tensor spans."""
    start = int(tensor.storage_offset())
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start * tensor.itemsize, (start + (reach if tensor.numel() else 0)) * tensor.itemsize


def _length(spans: list[tuple[int, int]]) -> int:
    """Return the number of bytes that the spans cover together."""
    total = end = 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total
