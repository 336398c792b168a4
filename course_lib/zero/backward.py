"""A backward: its beginning and its end, and buckets that are reduced as soon as they are complete.

Hooks do not keep their owner alive.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.nn import Parameter

from .buckets import FlatBucket

Fn = Callable[..., None]


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that calls `method` as long as its object lives: it does not keep the object alive."""
    weak = WeakMethod(method)
    return lambda *args: (alive := weak()) and alive(*args)


def check_finished(in_backward: bool) -> None:
    """Raise an error if a backward has begun and not ended, unless this forward is within it (checkpointing).

    Raises:
        RuntimeError: the backward failed. Each rank may have averaged a different part of its gradients.
    """
    if in_backward and torch._C._current_graph_task_id() == -1:  # no backward runs. Private; torch's checkpoint uses it
        raise RuntimeError(
            "the engine's last backward did not finish: it raised an error, or was interrupted. Some of its gradients "
            "may have been averaged, others not, so training cannot go on from there. Make the model and the engine "
            "again, and load your last checkpoint."
        )


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
        fields = {field.name: getattr(output, field.name, None) for field in dataclasses.fields(output)}
        output = fields | getattr(output, "__dict__", {})  # there is none with slots=True
    items = output.values() if isinstance(output, Mapping) else output
    return [t for item in items for t in tensors_in(item)] if isinstance(output, Mapping | list | tuple | set) else []


class InBackward:
    """Moves gradients into their buckets in backward, and calls `reduce` on each bucket as soon as it is complete.

    Every rank reduces all buckets in the order of the list, in whatever order gradients come, if they come at all. When
    backward has ended, it calls `finish`. Both are methods of the engine, held weakly: hooks do not keep it alive.
    """

    def __init__(self, model: nn.Module, buckets: Sequence[FlatBucket], scale: float, reduce: Fn, finish: Fn) -> None:
        self._model, self._buckets, self._scale = model, buckets, scale
        self._reduce, self._finish = weakly(reduce), weakly(finish)
        self._bucket_of = {param: bucket for bucket in buckets for param in bucket.places}
        self._waiting: list[FlatBucket] = []
        self._in_backward = False
        self.enabled = True
        model.register_forward_hook(weakly(self._on_output))
        for param in self._bucket_of:
            param.register_post_accumulate_grad_hook(weakly(self._on_gradient))

    def _on_output(self, model: nn.Module, args: Any, output: Any) -> None:
        if model is self._model:  # a copy of the model has this hook, too
            check_finished(self._in_backward)
            before_backward(output, self._begin)

    def _begin(self) -> None:
        if self.enabled and not self._in_backward:
            self._in_backward = True
            self._waiting = list(self._buckets)
            after_backward(self._end)

    def _on_gradient(self, param: Parameter) -> None:
        """Autograd has just put a gradient into `param.grad`, or added it to what was there."""
        bucket = self._bucket_of[param]
        bucket.used.add(param)
        if self.enabled and param.grad is not None:
            self._begin()  # if a part of the model was called by itself, no output of the model has begun it
            bucket.add_grad(param, param.grad, self._scale)
            param.grad = None  # it is in flat_grad now: the whole gradient is freed here
            while self._waiting and len(self._waiting[0].arrived) == len(self._waiting[0].places):
                self._reduce(self._waiting.pop(0))

    def _end(self) -> None:
        while self._waiting:  # this rank has no gradients for some of their parameters; other ranks may
            self._reduce(self._waiting.pop(0))
        for bucket in self._buckets:
            if bucket.arrived:  # reentrant checkpointing used a layer twice: gradients after their bucket's reduction
                self._reduce(bucket)
        self._in_backward = False
        self._finish()
