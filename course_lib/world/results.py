"""What a rank returns, on its way to the kernel."""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle
import torch

from ..errors import CourseError


class _Pickler(cloudpickle.Pickler):
    """Tensors arrive on the CPU, and without the rest of the memory that they are a part of."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type in ("cpu", "cuda"):
            compact = obj.cpu()
            if compact.untyped_storage().nbytes() > compact.nbytes:
                compact = compact.clone()
            if compact is not obj:
                return compact.detach().requires_grad_(obj.requires_grad).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def pack(value: Any) -> bytes:
    """`value` as bytes for `unpack`.

    Raises:
        CourseError: it cannot leave its process.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:
        raise CourseError(
            f"what the function returned, a {type(value).__name__}, cannot be sent to the notebook "
            f"({type(error).__name__}: {error}). Return numbers, tensors, or lists and dicts of them."
        ) from None
    return buffer.getvalue()


def unpack(packed: bytes) -> Any:
    """What `pack` was given."""
    return pickle.loads(packed)
