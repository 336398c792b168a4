"""The devices that a program names, and where memory is: on a pretended GPU or on the host."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ....meter import MemoryMeter, current
from .. import interposer

CPU = torch.device("cpu")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
Device = torch.device  # which is replaced while GPUs are pretended


def by_torch() -> bool:
    """Return whether torch or the course called the function that asks. They get the real device."""
    name = str(sys._getframe(2).f_globals.get("__name__"))
    return name == "torch" or name.startswith(("torch.", "course_lib.world.", "course_lib.meter."))


class Gpus:
    """The pretended GPUs of this machine, and which of them each rank uses."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.count, self.nbytes = count, nbytes
        self._visible = os.environ.get(_VISIBLE)
        self._set: dict[Any, int] = {}  # by rank, as `set_device` says
        self._named: dict[Any, int] = {}  # by rank, the last number that the program named

    @property
    def visible_count(self) -> int:
        """The number of GPUs, or of those that the program names in CUDA_VISIBLE_DEVICES."""
        named = os.environ.get(_VISIBLE)
        return min(self.count, named.count(",") + 1) if named and named != self._visible else self.count

    @property
    def chosen(self) -> int | None:
        """The number of the rank's current GPU; None if the program has not set it."""
        return self._set.get(interposer.current())

    @property
    def current(self) -> int:
        return self.chosen or 0

    @property
    def device(self) -> torch.device:
        """The rank's GPU, as its tensors name it: all that a rank puts on a GPU is on the same one."""
        rank = interposer.current()
        return Device("cuda", self._set.get(rank, self._named.get(rank, 0)))

    def choose(self, device: Any) -> int:
        """Make a GPU the rank's current one. Return the number of the one before. As in torch, a negative number
        changes nothing."""
        before, ignored = self.current, isinstance(device, int) and device < 0
        number = None if ignored else self.number(device)
        if number is not None:
            self._set[interposer.current()] = number
        return before

    def number(self, device: Any) -> int | None:
        """Return the number of the GPU that `device` names, in whatever way; None if it is not a GPU."""
        if isinstance(device, str) and device.startswith("cuda"):
            device = Device(device)
        if isinstance(device, Device) and device.type == "cuda":
            device = self.current if device.index is None else device.index
        if not isinstance(device, int) or isinstance(device, bool):
            return None
        if not 0 <= device < self.count:
            raise torch.AcceleratorError(
                f"CUDA error: invalid device ordinal. There are {self.count} pretended GPUs, from cuda:0 on, and the "
                f"program named cuda:{device}."
            )
        self._named[interposer.current()] = device
        return device

    def place(self, device: Any, *, by_torch: bool) -> tuple[Any, bool | None]:
        """Return the device for torch, and whether memory there is the GPU's; None if the device does not decide it."""
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
    """Return `tensor` if it is on that side, the GPU or the host; if not, return a copy on that side."""
    meter = meter_of_gpu()
    if meter is None:  # a program counts on its own copy when it takes a value to the host
        return tensor if on_gpu else tensor.clone()
    if tensor.is_meta or not tensor.numel() or meter.holds(tensor) is on_gpu:
        return tensor
    with placing(on_gpu):
        return tensor.clone()


def put_module(module: nn.Module, on_gpu: bool = True) -> nn.Module:
    moved: nn.Module = module._apply(lambda tensor: put(tensor, on_gpu))
    return moved


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
