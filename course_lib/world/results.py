"""What a rank returns, on its way to the kernel."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from ..errors import CourseError


class StayedBehind:
    """Stands for what a rank returned and what cannot leave its process: a model with its process groups, say.

    Functions also return things in order to keep them until the memory is measured. So it is an error only to use it.
    """

    def __init__(self, rank: int, type_name: str, why: str) -> None:
        self._told = rank, type_name, why

    def __repr__(self) -> str:
        return f"<a {self._told[1]}, which stayed in the process of rank {self._told[0]}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_told":  # pickle and copy ask for such names, and want this answer
            raise AttributeError(name)
        rank, type_name, why = self._told
        raise CourseError(
            f"what rank {rank} returned, a {type_name}, stayed in its process ({why}), and has no .{name} here. "
            "Return numbers, tensors, or lists and dicts of them."
        )


class _Pickler(cloudpickle.Pickler):
    """Tensors arrive on the CPU, without hooks, and without the rest of the memory that they are a part of."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type in ("cpu", "cuda"):
            alone = obj.detach().cpu()
            if alone.untyped_storage().nbytes() > alone.nbytes:
                alone = alone.clone()
            return alone.requires_grad_(obj.requires_grad).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What a rank returned, as it travels.

    Attributes:
        type_name: of what class it is.
        data: it; empty if it cannot travel.
        why: then, the reason.
    """

    type_name: str
    data: bytes = b""
    why: str = ""


def pack(value: Any) -> Packed:
    """`value`, for `unpack` in another process."""
    buffer, type_name = io.BytesIO(), type(value).__name__
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:
        return Packed(type_name=type_name, why=f"{type(error).__name__}: {error}")
    return Packed(type_name=type_name, data=buffer.getvalue())


def unpack(rank: int, packed: Packed) -> Any:
    """What `rank` returned, or a `StayedBehind` if it could not travel."""
    why = packed.why
    if packed.data:
        try:
            return pickle.loads(packed.data)
        except Exception as error:  # it was made to be put together on a rank
            why = f"{type(error).__name__}: {error}"
    return StayedBehind(rank, packed.type_name, why)
