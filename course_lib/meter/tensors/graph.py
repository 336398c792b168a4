"""The tensors that autograd saves, and the node that it runs: all reads of autograd's private attributes are here."""

from collections.abc import Iterable, Iterator
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from .storages import plain, tensors_in


def saved_for_backward(tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, str]]:
    """Yield each tensor saved in the graph behind `tensors`, with the name of the node that uses it, such as
    MmBackward0.

    A tensor that was saved through hooks is yielded as they packed it. Unpacking could recompute it, as checkpointing
    does.
    """
    waiting = [node for tensor in tensors if (node := tensor.grad_fn) is not None]
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
    yield from vars(node).values() if hasattr(node, "__dict__") else ()  # attributes that a Function set on its ctx


@cache
def _saved_names(node_type: type) -> tuple[str, ...]:
    """Return the names of a node's `SavedTensor`s, which torch calls `_raw_saved_...`."""
    return tuple(name for name in dir(node_type) if name.startswith("_raw_saved_"))


def makes_gradient(caller: FrameType | None) -> bool:
    """Return whether `caller` called the operator as part of autograd, which accumulates a leaf's `.grad`.

    A hook that runs afterwards is still inside the same node, but called from a frame of its own.
    """
    if type(torch._C._current_autograd_node()).__name__ != "AccumulateGrad":
        return False
    return caller is None or caller.f_code.co_name == "_engine_run_backward"
