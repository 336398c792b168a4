"""Results on their way back from a rank that is a process."""

import io
import pickle
from typing import Any

import torch

from ...errors import CourseError
from .kernel_classes import KernelUnpickler
from .pickler import Pickler


class StayedBehind:
    """A placeholder for a return value that cannot leave its process, such as a model with its process groups.

    A function may return an object only to keep it alive for measuring. So only its use is an error.
    """

    def __init__(self, rank: int, type_name: str, why: str) -> None:
        self._details = rank, type_name, why

    def __repr__(self) -> str:
        return f"<a {self._details[1]}, which stayed in the process of rank {self._details[0]}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_details":  # pickle and copy look up such names, and expect this error
            raise AttributeError(name)
        rank, type_name, why = self._details
        raise CourseError(
            f"what rank {rank} returned, a {type_name}, stayed in its process ({why}), and has no .{name} here. "
            "Return numbers, tensors, or lists and dicts of them."
        )


class _ResultPickler(Pickler):
    """A pickler whose tensors arrive on the CPU, without hooks and without memory that they do not use."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type in ("cpu", "cuda"):
            tensor = obj.detach().cpu()
            if tensor.untyped_storage().nbytes() > tensor.nbytes:
                tensor = tensor.clone()
            return tensor.requires_grad_(obj.requires_grad).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def pack_result(rank: int, value: Any) -> tuple[str, bytes]:
    """Return `value`, packed for another process, after the name of its type. If it cannot be pickled, pack a
    `StayedBehind`."""
    buffer, type_name = io.BytesIO(), type(value).__name__
    try:
        _ResultPickler(buffer).dump(value)
    except Exception as error:
        return type_name, pickle.dumps(StayedBehind(rank, type_name, f"{type(error).__name__}: {error}"))
    return type_name, buffer.getvalue()


def unpack_result(rank: int, type_name: str, data: bytes) -> Any:
    try:
        return KernelUnpickler(data).load()
    except Exception as error:  # it can be unpickled only on a rank
        return StayedBehind(rank, type_name, f"{type(error).__name__}: {error}")
