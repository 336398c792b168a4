"""`torch.cuda` and `torch.accelerator` of a pretended GPU, for programs. torch itself gets the truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self._seconds = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        return (other._seconds - self._seconds) * 1e3

    def query(self) -> bool:
        return True

    def synchronize(self, *args: Any) -> None:
        """Return at once: there is nothing to wait for."""

    wait = synchronize


class Stream(Event):
    """A CUDA stream, and the block in which it is the current one."""

    cuda_stream = priority = 0
    wait_stream = wait_event = Event.synchronize

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *args: Any) -> None:
        """Leave the block."""


for _one in (Event, Stream):
    _one.__module__ = "torch.cuda"  # pickled by the name of what it replaces


class _Block:
    """The block of `torch.cuda.device`, in which a GPU is the rank's current one."""

    def __init__(self, gpus: Gpus, device: Any) -> None:
        self._gpus, self._device = gpus, device

    def __enter__(self) -> None:
        self._before = self._gpus.choose(self._device)

    def __exit__(self, *args: Any) -> None:
        self._gpus.choose(self._before)


# -- memory ------------------------------------------------------------------------------------------------------------


def _gpu() -> PretendedGpu | Any:
    """Return the calling rank's GPU; one that holds nothing if its memory is not measured."""
    meter = meter_of_gpu()
    return SimpleNamespace(current=0, peak=0, reset_peak=lambda: None) if meter is None else meter.gpu


def _allocated(device: Any = None) -> int:
    return int(_gpu().current)


def _max_allocated(device: Any = None) -> int:
    return int(_gpu().peak)


def _reserved(device: Any = None) -> int:
    return -(-_max_allocated() // _SEGMENT) * _SEGMENT  # the allocator keeps what was freed


def _statistics(device: Any = None) -> dict[str, int]:
    figures = {"num_alloc_retries": 0, "num_ooms": 0}
    for kind, now, peak in (
        ("allocated", _allocated(), _max_allocated()),
        ("active", _allocated(), _max_allocated()),
        ("reserved", _reserved(), _reserved()),
    ):
        figures |= {f"{kind}_bytes.all.current": now, f"{kind}_bytes.all.peak": peak}
    return figures


def _summary(*args: Any, **kwargs: Any) -> str:
    return f"{NAME}: {_allocated():,} bytes allocated, {_max_allocated():,} at the peak"


_MEMORY: dict[str, Callable[..., Any]] = {
    "memory_allocated": _allocated,
    "max_memory_allocated": _max_allocated,
    "memory_reserved": _reserved,
    "max_memory_reserved": _reserved,
    "reset_peak_memory_stats": lambda device=None: _gpu().reset_peak(),
    "reset_max_memory_allocated": lambda device=None: _gpu().reset_peak(),
    "memory_stats": _statistics,
    "memory_summary": _summary,
}


# -- the replacements --------------------------------------------------------------------------------------------------

_NOTHING_TO_DO = (
    *("init", "synchronize", "set_stream", "ipc_collect"),
    *("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
    *("empty_cache", "reset_accumulated_memory_stats", "set_per_process_memory_fraction"),
)

_ALSO_FOR_TORCH = {"get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all"}  # for `fork_rng`


def _functions(gpus: Gpus) -> dict[str, Callable[..., Any]]:
    def properties(device: Any = None) -> Any:
        return SimpleNamespace(
            name=NAME, total_memory=gpus.nbytes, major=8, minor=0, multi_processor_count=108, warp_size=32
        )

    def free(device: Any = None) -> tuple[int, int]:
        return gpus.nbytes - _allocated(), gpus.nbytes

    def set_device(device: Any) -> None:
        gpus.choose(device)

    def stream(*args: Any, **kwargs: Any) -> Stream:
        return Stream()

    return (
        dict.fromkeys(_NOTHING_TO_DO, lambda *args, **kwargs: None)
        | _MEMORY
        | {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: gpus.count,
            "set_device": set_device,
            "current_device": lambda: gpus.current,
            "get_device_name": lambda device=None: NAME,
            "get_device_capability": lambda device=None: (8, 0),
            "get_device_properties": properties,
            "is_bf16_supported": lambda *args, **kwargs: True,
            "mem_get_info": free,
            "get_rng_state": lambda device=None: torch.get_rng_state(),
            "get_rng_state_all": lambda: [torch.get_rng_state()],
            "current_stream": stream,
            "default_stream": stream,
            "stream": stream,
            "device": lambda device: _Block(gpus, device),
        }
    )


def _unless_torch_asks(real: Callable[..., Any], pretended: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: (real if by_torch() else pretended)(*args, **kwargs)


def replacements(gpus: Gpus) -> Iterator[Replacement]:
    """Yield the replacements for what a program asks of its GPUs."""
    functions = _functions(gpus)
    for name, pretended in functions.items():
        real = getattr(torch.cuda, name)
        new = pretended if name in _ALSO_FOR_TORCH else _unless_torch_asks(real, pretended)
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
            if getattr(module, name, None) is real:
                yield module, name, new
    yield torch.cuda, "Event", Event
    yield torch.cuda, "Stream", Stream
    for name in ("range_push", "range_pop", "mark"):
        yield torch.cuda.nvtx, name, lambda *args, **kwargs: None
    yield from _of_accelerator(gpus, functions)


def _of_accelerator(gpus: Gpus, functions: dict[str, Callable[..., Any]]) -> Iterator[Replacement]:
    pretended = {name: function for name, function in functions.items() if hasattr(torch.accelerator, name)} | {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": functions["current_device"],
        "set_device_index": functions["set_device"],
        "device_index": functions["device"],
        "get_memory_info": functions["mem_get_info"],
    }
    for name, function in pretended.items():
        yield torch.accelerator, name, _unless_torch_asks(getattr(torch.accelerator, name), function)
    real = torch.get_device_module
    yield torch, "get_device_module", lambda device=None: real(device if device or by_torch() else "cuda")
