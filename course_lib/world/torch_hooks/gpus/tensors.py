"""The functions and methods of torch that make and move tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _device as default_device

from ..patching import Replacement
from .devices import Device, Gpus, by_torch, meter_of_gpu, placing, put, put_module, without

_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "normal")
_NEW = ("new_empty", "new_empty_strided", "new_full", "new_zeros", "new_ones")


def replacements(gpus: Gpus) -> Iterator[Replacement]:
    def device(*args: Any, **kwargs: Any) -> torch.device:
        number = gpus.number(args[0]) if len(args) == 1 and isinstance(args[0], int) and not kwargs else None
        return Device(*args, **kwargs) if number is None else Device("cuda", number)

    real_generator = torch.Generator

    def generator(device: Any = "cpu") -> torch.Generator:
        return real_generator(gpus.place(device, by_torch=True)[0])

    yield torch, "device", _imitation(Device, device)
    yield torch, "Generator", _imitation(real_generator, generator)
    # This fills torch's cache of that set with torch's own functions.
    constructors = {one.__name__ for one in default_device._device_constructors()}
    for name in sorted({name for name in constructors if hasattr(torch, name)} | set(_LIKE)):
        yield torch, name, without(gpus, getattr(torch, name), "pin_memory")
    for name in _NEW:
        yield Tensor, name, without(gpus, getattr(Tensor, name), "pin_memory")
    yield from _of_tensors(gpus)
    yield from _of_modules(gpus)
    yield from _of_default_device(gpus)


def _imitation(real: type, make: Callable[..., Any]) -> type:
    """Return a class that stands for `real`, and makes instances of it with `make`."""

    class Imitation(type):
        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, real)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    body = {"__new__": lambda cls, *args, **kwargs: make(*args, **kwargs), "__module__": "torch"}
    return Imitation(real.__name__, (), body)


def _destination(gpus: Gpus, args: Any, kwargs: Any, by_torch: bool) -> tuple[Any, Any, bool | None]:
    """Return the arguments of a `to`, for torch, and whether it moves to the GPU, to the host or (None) nowhere."""
    target = kwargs.get("device", kwargs.get("other", args[0] if args else None))
    if isinstance(target, torch.dtype):
        return args, kwargs, None
    if isinstance(target, Tensor):
        meter = meter_of_gpu()
        return args, kwargs, None if meter is None or by_torch else meter.holds(target)
    device, on_gpu = gpus.place(target, by_torch=by_torch)
    args = tuple(device if arg is target else arg for arg in args)
    return args, {name: device if value is target else value for name, value in kwargs.items()}, on_gpu


def _of_tensors(gpus: Gpus) -> Iterator[Replacement]:
    real_to, real_cpu = Tensor.to, Tensor.cpu

    def real_device(self: Tensor) -> torch.device:
        with torch._C.DisableTorchFunctionSubclass():  # ShardedTensor knows only torch's own `Tensor.device`
            return torch._C.TensorBase.device.__get__(self)

    def move(self: Tensor, args: Any, kwargs: Any, by_torch: bool) -> Tensor:
        args, kwargs, on_gpu = _destination(gpus, args, kwargs, by_torch)
        with placing(on_gpu):
            result = real_to(self, *args, **kwargs)
        return result if on_gpu is None else put(result, on_gpu)

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return move(self, args, kwargs, by_torch())

    def cuda(self: Tensor, device: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        return move(self, ("cuda" if device is None else device,), kwargs, False)

    def cpu(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if meter_of_gpu() is None and by_torch():
            return real_cpu(self, *args, **kwargs)
        return put(real_cpu(self, *args, **kwargs), False)

    def type_as(self: Tensor, other: Tensor) -> Tensor:
        return move(self, (other,), {}, by_torch())

    def on_gpu(self: Tensor) -> bool:
        meter = meter_of_gpu()
        return meter is not None and real_device(self).type == "cpu" and meter.holds(self)

    def device(self: Tensor) -> torch.device:
        return real_device(self) if by_torch() or not on_gpu(self) else gpus.device

    def get_device(self: Tensor) -> int:
        return gpus.device.index if not by_torch() and on_gpu(self) else -1

    yield Tensor, "to", to
    yield Tensor, "cuda", cuda
    yield Tensor, "cpu", cpu
    yield Tensor, "type_as", type_as
    for name in ("new", "new_tensor", "__deepcopy__"):  # no argument of their operators is the tensor
        yield Tensor, name, without(gpus, _next_to_itself(getattr(Tensor, name)), "pin_memory")
    # Tensor.is_cuda stays False: libraries choose the kernels of GPUs by it.
    yield Tensor, "device", property(device)
    yield Tensor, "get_device", get_device
    yield Tensor, "pin_memory", lambda self, device=None: self
    yield Tensor, "record_stream", lambda self, stream: None


def _next_to_itself(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(make)
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        meter = meter_of_gpu()
        with placing(True if kwargs.get("device") is None and meter is not None and meter.holds(self) else None):
            return make(self, *args, **kwargs)

    return call


def _of_modules(gpus: Gpus) -> Iterator[Replacement]:
    real_to = nn.Module.to

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        args, kwargs, on_gpu = _destination(gpus, args, kwargs, by_torch())
        module = real_to(self, *args, **kwargs)
        return module if on_gpu is None else put_module(module, on_gpu)

    def cuda(self: nn.Module, device: Any = None) -> nn.Module:
        gpus.number(device)
        return put_module(self)

    yield nn.Module, "to", to
    yield nn.Module, "cuda", cuda
    yield nn.Module, "to_empty", without(gpus, nn.Module.to_empty, at=1)


def _of_default_device(gpus: Gpus) -> Iterator[Replacement]:
    context: Any = default_device.DeviceContext
    function = context.__torch_function__

    def __init__(self: Any, device: Any) -> None:
        self.prev_mode = None
        self.device, self.on_gpu = gpus.place(Device(device), by_torch=True)

    def __torch_function__(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        decides = func in default_device._device_constructors() and kwargs.get("device") is None
        on_gpu = getattr(self, "on_gpu", None) if decides else None  # None: it was made before GPUs were pretended
        with placing(on_gpu):
            result = function(self, func, types, args, kwargs)
        return put(result) if on_gpu and isinstance(result, Tensor) else result

    yield context, "__init__", __init__
    yield context, "__torch_function__", __torch_function__
