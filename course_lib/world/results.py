"""Return values of ranks: pack them on the rank, unpack them in the kernel."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from ..errors import CourseError


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


class _Pickler(cloudpickle.Pickler):
    """A pickler whose tensors arrive on the CPU, without hooks and without memory that they do not use."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type in ("cpu", "cuda"):
            tensor = obj.detach().cpu()
            if tensor.untyped_storage().nbytes() > tensor.nbytes:
                tensor = tensor.clone()
            return tensor.requires_grad_(obj.requires_grad).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A packed return value.

    Attributes:
        type_name: name of its class.
        data: the pickled value; empty if it cannot be pickled.
        why: the reason, if it cannot be pickled.
    """

    type_name: str
    data: bytes = b""
    why: str = ""


def pack(value: Any) -> Packed:
    """Return `value`, packed for `unpack` in another process."""
    buffer, type_name = io.BytesIO(), type(value).__name__
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:
        return Packed(type_name=type_name, why=f"{type(error).__name__}: {error}")
    return Packed(type_name=type_name, data=buffer.getvalue())


def unpack(rank: int, packed: Packed) -> Any:
    """Return what `rank` returned, or a `StayedBehind` if it could not be sent."""
    why = packed.why
    if packed.data:
        try:
            return pickle.loads(packed.data)
        except Exception as error:  # it can be unpickled only on a rank
            why = f"{type(error).__name__}: {error}"
    return StayedBehind(rank, packed.type_name, why)
