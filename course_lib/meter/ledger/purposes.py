"""The purpose of each block of memory at one moment."""

from collections import Counter, defaultdict

from ..tensors.graph import saved_for_backward
from ..tensors.storages import extent, plain, storage_of
from ..watching.owners import Owners
from .ledger import Ledger


def purposes(ledger: Ledger, owners: Owners) -> tuple[dict[int, str], Counter[str]]:
    """Find the purposes of the blocks in `ledger`.

    Persistent tensors that no operator made (NumPy did, for example) are added to the ledger.

    Returns:
        The category of each block that has one, by the address of its storage. The bytes of parameters, gradients and
        optimizer that no tensor of theirs covers, by category.
    """
    by_address: dict[int, str] = {}
    uncovered: Counter[str] = Counter()
    covered: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for category, tensor in owners.lasting():
        for part in plain(tensor):
            storage = storage_of(part)
            if storage is None or not storage.nbytes():
                continue
            block = ledger.find(storage)
            if block is None and not ledger.takes_all:
                continue
            block = block or ledger.enter(storage, storage.nbytes(), None, "another library")
            block.category = by_address.setdefault(block.address, category)
            if category != "other":
                covered[block.address].append(extent(part))
    made = [block.tensor() for block in ledger.live if block.tensor is not None]
    for part, _ in saved_for_backward(tensor for tensor in made if tensor is not None):
        saved = ledger.find(storage_of(part))
        if saved is not None:
            by_address.setdefault(saved.address, "activations")
            saved.guess("activations")
    for block in ledger.live:
        if block.category == "communication":
            by_address.setdefault(block.address, "communication")
        if block.address in covered:
            uncovered[by_address[block.address]] += block.nbytes - _length(covered[block.address])
    return by_address, uncovered


def _length(spans: list[tuple[int, int]]) -> int:
    """Return the number of bytes that the spans cover together."""
    total = end = 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total
