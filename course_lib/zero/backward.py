"""When a backward begins, when it has come to a gradient, and when it has ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakMethod

from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.nn import Parameter


def before_backward(output: Any, fn: Callable[[], None]) -> None:
    """Call `fn` once in each backward through `output`, as soon as it comes to one of the tensors in there."""
    tensors = [tensor for tensor in _tensors_in(output) if tensor.grad_fn is not None]
    if tensors:
        register_multi_grad_hook(tensors, lambda _: fn(), mode="any")


def after_backward(fn: Callable[[], None]) -> None:
    """Call `fn` when the backward that is under way has ended. Private in torch, whose DDP and FSDP use it likewise."""
    Variable._execution_engine.queue_callback(fn)


def after_gradient(param: Parameter, method: Callable[..., None], *numbers: int) -> None:
    """Call `method(*numbers, param)` whenever a gradient has come to `param.grad`, while the method's object is there.

    Such a hook is out of sight of Python's garbage collector. One that held the object, and with it the model that
    `param` is in, would keep all of it for ever.
    """
    weak = WeakMethod(method)

    def hook(param: Tensor) -> None:
        if (strong := weak()) is not None:
            strong(*numbers, param)

    param.register_post_accumulate_grad_hook(hook)


def _tensors_in(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors_in(list(output.values()))
    elif isinstance(output, list | tuple | set):
        for item in output:
            yield from _tensors_in(item)
    elif dataclasses.is_dataclass(output):
        yield from _tensors_in(list(vars(output).values()))
