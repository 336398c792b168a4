"""`torch.cuda` and `torch.accelerator` of a pretended GPU, for programs. torch itself gets the truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from ....meter.gpu import PretendedGpu
from ..patching import Replacement
from .devices import Gpus, by_torch, meter_of_gpu

NAME = "pretended GPU"
_SEGMENT = 2 * 2**20  # CUDA's allocator reserves multiples of this


class Event:
    """A CUDA event. All work is done when the call that starts it returns, so an event only needs the time."""

    __module__ = "torch.cuda"  # pickled by the name of what it replaces

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self._seconds = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        return (other._seconds - self._seconds) * 1e3

    def query(self) -> bool:
        return True

    def synchronize(self, *args: Any) -> None: ...

    wait = synchronize


class Stream(Event):
    """A CUDA stream, and the block in which it is the current one."""

    __module__ = "torch.cuda"
    cuda_stream = priority = 0
    wait_stream = wait_event = __exit__ = Event.synchronize

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def __enter__(self) -> Stream:
        return self


# -- memory ------------------------------------------------------------------------------------------------------------


def _gpu() -> PretendedGpu | Any:
    """Return the calling rank's GPU; one that holds nothing if its memory is not measured."""
    meter = meter_of_gpu()
    return SimpleNamespace(current=0, peak=0, reset_peak=lambda: None) if meter is None else meter.gpu


def _reserved(device: Any = None) -> int:
    return -(-int(_gpu().peak) // _SEGMENT) * _SEGMENT  # the allocator keeps what was freed


def _statistics(device: Any = None) -> dict[str, int]:
    gpu, reserved = _gpu(), _reserved()
    held = {"allocated": (gpu.current, gpu.peak), "active": (gpu.current, gpu.peak), "reserved": (reserved, reserved)}
    figures = {"num_alloc_retries": 0, "num_ooms": 0}
    for kind, (now, peak) in held.items():
        figures |= {f"{kind}_bytes.all.current": now, f"{kind}_bytes.all.peak": peak}
    return figures


# -- the replacements --------------------------------------------------------------------------------------------------

_NOTHING_TO_DO = (
    *("init", "synchronize", "set_stream", "ipc_collect"),
    *("manual_seed", "manual_seed_all", "seed", "seed_all"),
    *("empty_cache", "reset_accumulated_memory_stats", "set_per_process_memory_fraction"),
)

_ALSO_FOR_TORCH = {"get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all"}  # for `fork_rng`

_ACCELERATOR = {
    "current_device_index": "current_device",
    "set_device_index": "set_device",
    "device_index": "device",
    "get_memory_info": "mem_get_info",
}
"""The functions of `torch.accelerator` with another name than in `torch.cuda`."""


def _functions(gpus: Gpus) -> dict[str, Callable[..., Any]]:
    about = SimpleNamespace(
        name=NAME, total_memory=gpus.nbytes, major=8, minor=0, multi_processor_count=108, warp_size=32
    )

    def set_device(device: Any) -> None:
        gpus.choose(device)

    @contextmanager
    def device(device: Any) -> Iterator[None]:
        before = gpus.choose(device)
        try:
            yield
        finally:
            gpus.choose(before)

    def stream(*args: Any, **kwargs: Any) -> Stream:
        return Stream()

    def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
        if not by_torch():  # torch also sets the CPU's
            torch.set_rng_state(new_state)

    def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
        if not by_torch():
            torch.set_rng_state(next(iter(new_states)))

    return dict.fromkeys(_NOTHING_TO_DO, lambda *args, **kwargs: None) | {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "device_count": lambda: gpus.visible_count,
        "set_device": set_device,
        "current_device": lambda: gpus.current,
        "device": device,
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: (8, 0),
        "get_device_properties": lambda device=None: about,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": set_rng_state,
        "set_rng_state_all": set_rng_state_all,
        "current_stream": stream,
        "default_stream": stream,
        "stream": stream,
        "mem_get_info": lambda device=None: (gpus.nbytes - _gpu().current, gpus.nbytes),
        "memory_allocated": lambda device=None: _gpu().current,
        "max_memory_allocated": lambda device=None: _gpu().peak,
        "memory_reserved": _reserved,
        "max_memory_reserved": _reserved,
        "reset_peak_memory_stats": lambda device=None: _gpu().reset_peak(),
        "reset_max_memory_allocated": lambda device=None: _gpu().reset_peak(),
        "memory_stats": _statistics,
        "memory_summary": lambda *args, **kwargs: f"{NAME}: {_gpu().current:,} bytes, {_gpu().peak:,} at the peak",
    }


def replacements(gpus: Gpus) -> Iterator[Replacement]:
    functions = _functions(gpus)
    for name, pretended in functions.items():
        real = getattr(torch.cuda, name)
        new = pretended if name in _ALSO_FOR_TORCH else _unless_torch_asks(real, pretended)
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
            if getattr(module, name, None) is real:
                yield module, name, new
    yield torch.cuda, "Event", Event
    yield torch.cuda, "Stream", Stream
    yield torch.cuda.nccl, "version", lambda: (2, 27, 0)  # gloo carries what NCCL would
    optimizers = import_module("torch.optim.optimizer")  # torch deletes its name in torch.optim
    of_gpus = optimizers._get_foreach_kernels_supported_devices
    yield optimizers, of_gpus.__name__, lambda: [*of_gpus(), "cpu"]  # foreach is the default on a GPU
    for name in ("range_push", "range_pop", "mark"):
        yield torch.cuda.nvtx, name, lambda *args, **kwargs: None

    of_accelerator = {name: name for name in functions if hasattr(torch.accelerator, name)} | _ACCELERATOR
    for name, same in of_accelerator.items():
        yield torch.accelerator, name, _unless_torch_asks(getattr(torch.accelerator, name), functions[same])
    which, module_of = torch.accelerator.current_accelerator, torch.get_device_module
    yield (
        torch.accelerator,
        "current_accelerator",
        _unless_torch_asks(which, lambda check_available=False: torch.device("cuda")),
    )
    yield torch, "get_device_module", lambda device=None: module_of(device if device or by_torch() else "cuda")


def _unless_torch_asks(real: Callable[..., Any], pretended: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: (real if by_torch() else pretended)(*args, **kwargs)
