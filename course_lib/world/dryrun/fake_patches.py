"""Patches for torch's fake tensors: for methods that would crash (`deepcopy`), mislead (`data_ptr`) or fail with an
obscure error, and for functions that need memory or would take too long on thousands of ranks."""

import copy
import functools
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.utils.data import DataLoader

from ..torch_hooks import private
from ..torch_hooks.patching import Replacement
from ..torch_hooks.private import FakeTensor
from .fake_tensors import NoNumbers, WithoutNumbers

SPACING = 2**40  # bytes between the addresses of storages: more than any storage has


def replacements() -> Iterator[Replacement]:
    """Yield the replacements for dry runs; they change nothing on other threads."""
    # Imported here because they take most of a second to load.
    from torch.distributed.fsdp._fully_shard import _fsdp_param
    from torch.distributed.tensor import _collective_utils

    yield dist, "_verify_params_across_processes", _with_numbers(dist._verify_params_across_processes)
    yield dist.Reducer, "_rebuild_buckets", _with_numbers(dist.Reducer._rebuild_buckets)
    yield _fsdp_param, "_chunk_with_empty", _chunked_at_once(_fsdp_param._chunk_with_empty)
    # In a fake mode, DTensor of torch 2.12 takes itself for traced, and then copies parts that need no padding.
    yield _collective_utils, "_are_we_tracing", lambda: False
    yield torch.utils, "swap_tensors", _data_given(torch.utils.swap_tensors)
    yield DataLoader, "__init__", _without_workers(DataLoader.__init__)
    yield FakeTensor, "__deepcopy__", _deepcopy
    yield FakeTensor, "__format__", _format
    yield FakeTensor, "tolist", _known_list(FakeTensor.tolist)
    yield FakeTensor, "data_ptr", _data_ptr
    yield torch.UntypedStorage, "data_ptr", _addressed(torch.UntypedStorage.data_ptr)
    for name in ("numpy", "__array__", "__reduce_ex__"):
        yield FakeTensor, name, _refusing(name)


def _with_numbers(of_ddp: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        mode = private.fake_mode()
        if not isinstance(mode, WithoutNumbers):
            return of_ddp(*args)
        with mode.numbers_for_ddp():
            return of_ddp(*args)

    return call


def _chunked_at_once(chunk: Callable[[Tensor, int, int], list[Tensor]]) -> Callable[[Tensor, int, int], list[Tensor]]:
    """Return a `chunk` whose equal parts of a fake tensor are one tensor: there may be thousands, without values."""

    def chunked(tensor: Tensor, num_chunks: int, dim: int) -> list[Tensor]:
        if not isinstance(tensor, FakeTensor):
            return chunk(tensor, num_chunks, dim)
        rows = max(1, -(-tensor.size(dim) // num_chunks))
        full, rest = divmod(tensor.size(dim), rows)
        parts = [tensor.narrow(dim, 0, rows)] * full if full else []
        if rest or not full:
            parts.append(tensor.narrow(dim, 0, rest))
        return parts + [tensor.new_empty(0)] * (num_chunks - len(parts))

    return chunked


def _data_given(swap_tensors: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor, Tensor], None]:
    """Return a `swap_tensors` that only gives a fake tensor the other's data, as `Module.to` does with real tensors.

    Swapping whole tensors fails while the meter watches them.
    """

    def swap(one: Tensor, other: Tensor) -> None:
        if isinstance(one, FakeTensor):
            one.data = other.data
        else:
            swap_tensors(one, other)

    return swap


_OF_WORKERS = (
    "num_workers",
    "multiprocessing_context",
    "persistent_workers",
    "prefetch_factor",
    "timeout",
    "pin_memory",
)


def _without_workers(init: Callable[..., None]) -> Callable[..., None]:
    """Return a loader's `init` that starts no processes: a fake tensor cannot be sent from one."""

    @functools.wraps(init)
    def call(*args: Any, **kwargs: Any) -> None:
        if isinstance(private.fake_mode(), WithoutNumbers):
            kwargs = {name: value for name, value in kwargs.items() if name not in _OF_WORKERS}
        init(*args, **kwargs)

    return call


def _deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    if id(tensor) in memo:
        known: Tensor = memo[id(tensor)]
        return known
    if not tensor.is_leaf:
        raise RuntimeError("Only tensors created explicitly by the user support the deepcopy protocol")  # as torch's
    twin = tensor.detach().clone()
    if isinstance(tensor, Parameter):
        twin = Parameter(twin)
    memo[id(tensor)] = twin.requires_grad_(tensor.requires_grad)
    twin.grad = copy.deepcopy(tensor.grad, memo)
    return twin


def _addressed(data_ptr: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return a `data_ptr` that gives storages without memory distinct addresses, because code compares these."""
    numbers = count(1)

    def address(storage: Any) -> int:
        if storage.device.type != "meta" or private.fake_mode() is None:
            return data_ptr(storage)
        if not hasattr(storage, "_address"):
            storage._address = next(numbers) * SPACING
        known: int = storage._address
        return known

    return address


def _data_ptr(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() + int(tensor.storage_offset()) * tensor.itemsize


def _known_list(tolist: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a `tolist` that converts known values at once, not element by element: a mesh may have many ranks."""

    def known(tensor: Any) -> Any:
        return tolist(tensor) if tensor.constant is None else tensor.constant.tolist()

    return known


def _format(tensor: Tensor, spec: str) -> str:
    return format(tensor.item(), spec) if spec else repr(tensor)


def _refusing(name: str) -> Callable[..., Any]:
    operation = {"__reduce_ex__": "saving or sending a tensor"}.get(name, "NumPy reads the tensor's content")

    def refuse(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise NoNumbers(operation)

    return refuse
