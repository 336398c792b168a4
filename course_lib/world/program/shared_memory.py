"""Packing calls for ranks that a program starts, so that a tensor in shared memory is one tensor for all of them.

A rank opens the file behind the memory through `/proc`, as often as it likes: a handle of
`torch.multiprocessing.reductions` can be used once. Where there is no `/proc`, each rank gets a copy.
"""

import copyreg
import io
import os
import pickle
from collections import ChainMap
from typing import Any, ClassVar

import torch
from torch.storage import TypedStorage

from ..pickling.calls import FunctionCall
from ..pickling.pickler import Pickler
from ..torch_hooks.private import fake_mode


def packed(call: FunctionCall, *, forked: bool) -> bytes:
    """Return a call as bytes, for `pickle.loads` on a rank: by value for a fork, by name for a spawned rank."""
    buffer = io.BytesIO()
    (_Forked if forked else _Spawned)(buffer).dump(call)
    return buffer.getvalue()


def _reduced(storage: TypedStorage) -> Any:
    """Return what makes a tensor's `storage` on a rank."""
    untyped = storage._untyped_storage
    if untyped.device.type == "cpu" and untyped.is_shared() and untyped.nbytes():
        fd, nbytes = untyped._share_fd_cpu_()
        path = f"/proc/{os.getpid()}/fd/{fd}"
        if os.path.exists(path):  # torch.from_file leaves no descriptor
            return _opened, (path, nbytes, storage.dtype)
    return storage.__reduce__()


def _opened(path: str, nbytes: int, dtype: torch.dtype) -> TypedStorage:
    untyped_storage: Any = torch.UntypedStorage  # torch does not declare all of its methods
    if fake_mode() is not None:  # a dry run
        untyped = untyped_storage(nbytes, device="meta")
        untyped._fake_device = torch.device("cpu")
    else:
        fd = os.open(path, os.O_RDWR)
        try:
            untyped = untyped_storage._new_shared_fd_cpu(fd, nbytes)  # which duplicates the descriptor
        finally:
            os.close(fd)
    return TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


class _Spawned(pickle.Pickler):
    dispatch_table: ClassVar[Any] = ChainMap({TypedStorage: _reduced}, copyreg.dispatch_table)  # type: ignore[misc]


class _Forked(Pickler):
    dispatch_table: ClassVar[Any] = ChainMap({TypedStorage: _reduced}, Pickler.dispatch_table)
