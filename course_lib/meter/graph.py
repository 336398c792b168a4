"""What autograd keeps, and what it is doing: the private side of autograd that the meter reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from .storages import plain, tensors_in


def saved_for_backward(tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, str]]:
    """Each tensor saved in the graph behind `tensors`, with the name of the node that will use it, such as MmBackward0.

    What was saved through hooks is taken as they packed it: unpacking could compute it anew, as checkpointing does.
    """
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for value in _kept_by(node):
            for tensor in tensors_in(value):
                yield from ((part, node.name()) for part in plain(tensor))
        following = {function for function, _ in node.next_functions if function is not None} - seen
        waiting.extend(following)
        seen |= following


def _kept_by(node: Any) -> Iterator[Any]:
    for name in _saved_names(node.__class__):
        try:
            saved = getattr(node, name)
        except RuntimeError:  # backward has freed it
            continue
        for one in saved if isinstance(saved, list | tuple) else [saved]:
            if one is not None:
                yield one.data
    yield from vars(node).values() if hasattr(node, "__dict__") else ()  # what a Function put on its ctx by itself


@cache
def _saved_names(node_type: type) -> tuple[str, ...]:
    """The names of a node's `SavedTensor`s, which torch calls `_raw_saved_...`."""
    return tuple(name for name in dir(node_type) if name.startswith("_raw_saved_"))


def makes_gradient(caller: FrameType | None) -> bool:
    """Whether an operator that `caller` called is autograd's own, on the way to a leaf's `.grad`.

    A hook that runs after it is still inside the same node, but called from a frame of its own.
    """
    if type(torch._C._current_autograd_node()).__name__ != "AccumulateGrad":
        return False
    return caller is None or caller.f_code.co_name == "_engine_run_backward"
