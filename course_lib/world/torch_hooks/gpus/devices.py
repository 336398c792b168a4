"""The devices that a program names, and the functions of torch that take a device."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _device as default_device

from ....meter import MemoryMeter, current
from .. import interposer
from ..patching import Replacement

CPU = torch.device("cpu")
_Device, _Generator = torch.device, torch.Generator


def by_torch() -> bool:
    """Return whether torch, or what runs ranks, called the function that asks this. It gets the truth."""
    name = str(sys._getframe(2).f_globals.get("__name__"))
    return name == "torch" or name.startswith(("torch.", "course_lib.world.", "course_lib.meter."))


class Gpus:
    """The pretended GPUs of this machine, and which of them each rank uses."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.count, self.nbytes = count, nbytes
        self._set: dict[Any, int] = {}  # by rank, as `set_device` says
        self._named: dict[Any, int] = {}  # by rank, the last number that the program named

    @property
    def current(self) -> int:
        """The number of the rank's current GPU."""
        return self._set.get(interposer.current(), 0)

    @property
    def device(self) -> torch.device:
        """The rank's GPU, as its tensors name it: all that a rank puts on a GPU is on the same one."""
        rank = interposer.current()
        return _Device("cuda", self._set.get(rank, self._named.get(rank, 0)))

    def choose(self, device: Any) -> int:
        """Make a GPU the rank's current one. Return the number of the one before."""
        before, number = self.current, self.number(device)
        if number is not None:
            self._set[interposer.current()] = number
        return before

    def number(self, device: Any) -> int | None:
        """Return the number of the GPU that `device` names, in whatever way; None if it is not a GPU."""
        if isinstance(device, str) and device.startswith("cuda"):
            device = _Device(device)
        if isinstance(device, _Device) and device.type == "cuda":
            device = self.current if device.index is None else device.index
        if not isinstance(device, int) or isinstance(device, bool):
            return None
        if not -1 <= device < self.count:  # -1 stands for the current one
            raise torch.AcceleratorError(
                f"CUDA error: invalid device ordinal. There are {self.count} pretended GPUs, from cuda:0 on, and the "
                f"program named cuda:{device}."
            )
        if device >= 0:
            self._named[interposer.current()] = device
        return device

    def place(self, device: Any, *, by_torch: bool) -> tuple[Any, bool | None]:
        """Return the device for torch, and whether memory there is the GPU's; None if the device does not tell."""
        if self.number(device) is None:
            return device, None if device is None or by_torch else False
        return "cpu" if isinstance(device, str) else CPU, True


# -- memory ------------------------------------------------------------------------------------------------------------


def meter_of_gpu() -> MemoryMeter | None:
    """Return the calling thread's meter; None if it has none, or one without a GPU."""
    meter = current()
    return meter if meter is not None and meter.gpu is not None else None


@contextmanager
def placing(on_gpu: bool | None) -> Iterator[None]:
    """Put new memory on the GPU (True), or on the host (False), inside the block."""
    meter = meter_of_gpu()
    if meter is None or meter.gpu is None or on_gpu is None:
        yield
        return
    before, meter.gpu.placing = meter.gpu.placing, on_gpu
    try:
        yield
    finally:
        meter.gpu.placing = before


def put(tensor: Tensor, on_gpu: bool = True) -> Tensor:
    """Return `tensor` if it is where it should be, or a copy there."""
    meter = meter_of_gpu()
    if meter is None:  # a program counts on its own copy when it takes a value to the host
        return tensor if on_gpu else tensor.clone()
    if tensor.is_meta or not tensor.numel() or meter.holds(tensor) is on_gpu:
        return tensor
    with placing(on_gpu):
        return tensor.clone()


def put_module(module: nn.Module, on_gpu: bool = True) -> nn.Module:
    """Put a module's parameters and buffers on the GPU, or on the host."""
    return module._apply(lambda tensor: put(tensor, on_gpu))


# -- functions ---------------------------------------------------------------------------------------------------------


def imitation(real: type, make: Callable[..., Any]) -> type:
    """Return a class that stands for `real`, and makes instances of it with `make`."""

    class Imitation(type):
        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, real)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    body = {"__new__": lambda cls, *args, **kwargs: make(*args, **kwargs), "__module__": "torch"}
    return Imitation(real.__name__, (), body)


def without(gpus: Gpus, function: Callable[..., Any], *dropped: str, at: int = 99) -> Callable[..., Any]:
    """Return `function` with a GPU replaced by the CPU, as the argument `device` or `device_type` or at a position, and
    without the arguments `dropped`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        asked_by_torch = by_torch()
        for name in dropped:
            kwargs.pop(name, None)
        device = args[at] if len(args) > at else kwargs.get("device", kwargs.get("device_type"))
        if device is None:
            return function(*args, **kwargs)
        device, on_gpu = gpus.place(device, by_torch=asked_by_torch)
        args = tuple(device if place == at else arg for place, arg in enumerate(args))
        kwargs |= dict.fromkeys(kwargs.keys() & {"device", "device_type"}, device)
        with placing(on_gpu):
            result = function(*args, **kwargs)
        return put(result, on_gpu) if on_gpu is not None and isinstance(result, Tensor) else result

    return call


_LIKE = ["empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "normal"]
_NEW = ["new_tensor", "new_empty", "new_empty_strided", "new_full", "new_zeros", "new_ones"]


def replacements(gpus: Gpus) -> Iterator[Replacement]:
    """Yield the replacements for what makes and moves tensors."""

    def device(*args: Any, **kwargs: Any) -> torch.device:
        number = gpus.number(args[0]) if len(args) == 1 and isinstance(args[0], int) and not kwargs else None
        return _Device(*args, **kwargs) if number is None else _Device("cuda", number)

    def generator(device: Any = "cpu") -> torch.Generator:
        return _Generator(gpus.place(device, by_torch=True)[0])

    yield torch, "device", imitation(_Device, device)
    yield torch, "Generator", imitation(_Generator, generator)
    # This fills torch's cache of that set with torch's own functions.
    constructors = {one.__name__ for one in default_device._device_constructors()}
    for name in sorted({name for name in constructors if hasattr(torch, name)} | set(_LIKE)):
        yield torch, name, without(gpus, getattr(torch, name), "pin_memory")
    for name in _NEW:
        yield Tensor, name, without(gpus, getattr(Tensor, name), "pin_memory")
    yield from _of_tensors(gpus)
    yield from _of_modules(gpus)
    yield from _of_default_device(gpus)


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
    real_to, real_cpu, real_device = Tensor.to, Tensor.cpu, torch._C.TensorBase.device

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

    def on_gpu(self: Tensor) -> bool:
        meter = meter_of_gpu()
        return meter is not None and real_device.__get__(self).type == "cpu" and meter.holds(self)

    def device(self: Tensor) -> torch.device:
        return real_device.__get__(self) if by_torch() or not on_gpu(self) else gpus.device

    def get_device(self: Tensor) -> int:
        return gpus.device.index if not by_torch() and on_gpu(self) else -1

    yield Tensor, "to", to
    yield Tensor, "cuda", cuda
    yield Tensor, "cpu", cpu
    # Tensor.is_cuda stays False: libraries choose the kernels of GPUs by it.
    yield Tensor, "device", property(device)
    yield Tensor, "get_device", get_device
    yield Tensor, "pin_memory", lambda self, device=None: self
    yield Tensor, "record_stream", lambda self, stream: None


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
        self.device, self.on_gpu = gpus.place(_Device(device), by_torch=True)

    def __torch_function__(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        decides = func in default_device._device_constructors() and kwargs.get("device") is None
        on_gpu = getattr(self, "on_gpu", None) if decides else None  # None: it was made before GPUs were pretended
        with placing(on_gpu):
            result = function(self, func, types, args, kwargs)
        return put(result) if on_gpu and isinstance(result, Tensor) else result

    yield context, "__init__", __init__
    yield context, "__torch_function__", __torch_function__
