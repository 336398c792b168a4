"""The purpose of each block of memory at one moment."""

from ..tensors.graph import saved_for_backward
from ..tensors.storages import plain, storage_of
from ..watching.owners import Owners
from .ledger import Ledger


def purposes(ledger: Ledger, owners: Owners) -> dict[int, str]:
    """Return the category of each block in `ledger` that has one, by the address of its storage.

    Persistent tensors that no operator made (NumPy did, for example) are added to the ledger.
    """
    by_address: dict[int, str] = {}
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
    made = [block.tensor() for block in ledger.live if block.tensor is not None]
    for part, _ in saved_for_backward(tensor for tensor in made if tensor is not None):
        saved = ledger.find(storage_of(part))
        if saved is not None:
            by_address.setdefault(saved.address, "activations")
            saved.guess("activations")
    for block in ledger.live:
        if block.category == "communication":
            by_address.setdefault(block.address, "communication")
    return by_address
