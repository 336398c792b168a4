"""Hooks at the beginning and the end of a backward; and hooks that do not keep their owner alive."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakMethod

from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that calls `method` as long as its object lives: it does not keep the object alive."""
    weak = WeakMethod(method)
    return lambda *args: (alive := weak()) and alive(*args)


def before_backward(output: Any, fn: Callable[[], None]) -> None:
    """Call `fn` once in each backward through `output`, as soon as backward reaches one of its tensors."""
    tensors = [tensor for tensor in tensors_in(output) if tensor.grad_fn is not None]
    if tensors:
        register_multi_grad_hook(tensors, lambda _: fn(), mode="any")


def after_backward(fn: Callable[[], None]) -> None:
    """Call `fn` when the backward that is under way has ended. Private in torch; DDP and FSDP use it as well."""
    Variable._execution_engine.queue_callback(fn)


def tensors_in(output: Any) -> list[Tensor]:
    """Return the tensors in nested collections and dataclasses."""
    if isinstance(output, Tensor):
        return [output]
    if dataclasses.is_dataclass(output):
        output = vars(output)
    items = output.values() if isinstance(output, Mapping) else output
    return [t for item in items for t in tensors_in(item)] if isinstance(output, Mapping | list | tuple | set) else []
