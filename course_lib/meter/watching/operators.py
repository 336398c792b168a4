"""Watch every operator that allocates memory, on chosen threads, at no cost on other threads.

The dispatch key `TESTING_ONLY_GenericWrapper` sits above autograd and is used by nothing else in torch. A kernel is
registered on it here for each operator that gives its result new memory; all others fall through in C++, unseen. So
views and in-place operators, two thirds of a training step, cost nothing, which a `TorchDispatchMode` cannot offer.
While such an operator runs the key is excluded: only its result is watched, not the operators that it calls.

A result that passes through Python has a Python object, and autograd does not add to such a gradient in place. So
where a value was used several times, a measured step briefly holds one more gradient of an activation. In every model
tried, the peak was at another moment; `tests/meter/test_against_profiler.py` compares it with torch's profiler.

`arithmetic` handles some operators before they get here. Nothing else in the meter touches the dispatcher; `graph`
reads private names of autograd.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from ..source_line import outward
from .compiling import tracing, untraced

if TYPE_CHECKING:
    from ..memory_meter import MemoryMeter

WATCHED_KEY = "TESTING_ONLY_GenericWrapper"
_KEY = torch._C._dispatch_key_parse(WATCHED_KEY)  # passing the name would parse it in each call: 2 µs
_BELOW = torch._C._dispatch_keyset_full_after(WATCHED_KEY)
_leave_out = torch._C._dispatch_tls_set_dispatch_key_excluded


_thread = threading.local()
_watchers: list[MemoryMeter] = []  # of all threads; one list for the process, like its kernels on torch's dispatcher


def current() -> MemoryMeter | None:
    """Return the watcher of the calling thread, or None."""
    watcher: MemoryMeter | None = getattr(_thread, "watcher", None)
    return watcher


@contextmanager
def watching(watcher: MemoryMeter) -> Iterator[None]:
    """Report to `watcher` what the calling thread allocates, and what autograd's threads allocate for it."""
    _thread.watcher = watcher
    _watchers.append(watcher)
    _leave_out(_KEY, False)  # a run that was stopped inside an operator may have left the key excluded
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)
        _watchers.remove(watcher)
        del _thread.watcher


def is_left_out() -> bool:
    """Return whether the calling thread is not watched at the moment, for example inside a watched operator."""
    left_out: bool = torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY)
    return left_out


@contextmanager
def _left_out(is_so: bool) -> Iterator[None]:
    """Exclude the calling thread from watching inside the block, or include it."""
    before = is_left_out()
    _leave_out(_KEY, is_so)
    try:
        yield
    finally:
        _leave_out(_KEY, before)


def unseen(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the result of `fn`, called with the key excluded, on a thread that is watched.

    A context manager would take twice as long.
    """
    _leave_out(_KEY, True)
    try:
        return fn(*args, **kwargs)
    finally:
        _leave_out(_KEY, False)


def arguments() -> tuple[Any, ...]:
    """Return the arguments of the watched operator inside which the calling code runs; none outside of operators."""
    for frame in outward(sys._getframe(1)):
        if frame.f_code is unseen.__code__:
            return tuple(frame.f_locals["args"])
    return ()


def unwatched(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` wrapped so that it is not watched, on any thread."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _left_out(True):
            return fn(*args, **kwargs)

    return call


def unwatched_inside(enter: Callable[..., AbstractContextManager[Any]]) -> Callable[..., AbstractContextManager[Any]]:
    """Return `enter` wrapped so that its block is not watched."""

    @contextmanager
    def call(*args: Any) -> Iterator[Any]:
        with _left_out(True), enter(*args) as entered:
            yield entered

    return call


def watched_again(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` wrapped so that it is watched even inside an operator: a hook that packs saved tensors."""

    def call(*args: Any) -> Any:
        if current() is None:
            return fn(*args)
        with _left_out(False):
            return fn(*args)

    return call


# -- kernels -----------------------------------------------------------------------------------------------------


def _watcher_here() -> MemoryMeter | None:
    """Return the calling thread's watcher. The thread may have inherited the key: autograd has one for each GPU."""
    if tracing():
        return None
    return current() or (_watchers[0] if len(_watchers) == 1 else None)


def _making(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = unseen(call, args, kwargs)
        if (watcher := _watcher_here()) is not None:
            watcher.made(result, name, args)
        return result

    return kernel


def _converting(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        is_tensor = isinstance(args[0], Tensor)
        if not is_tensor and args[0] and kwargs.keys() == {"dtype"} and kwargs["dtype"] in _NUMPY:
            return _number(args[0], kwargs["dtype"])
        result = unseen(call, args, kwargs)
        if is_tensor and (watcher := _watcher_here()) is not None:
            watcher.made(result, name, args)
        return result

    return kernel


def _composed(operator: Any) -> Callable[..., Any]:
    """Return the kernel of an operator that is made of others, for results that come of `empty`, `zeros` or `full`,
    which do not show that a tensor of its arguments is on a pretended GPU."""

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        watcher = _watcher_here()
        with nullcontext() if watcher is None else watcher.next_to(args):
            return operator.redispatch(keyset & _BELOW, *args, **kwargs)

    return kernel


def _detaching(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def kernel(tensor: Tensor) -> Any:
        result = unseen(call, (tensor,), {})
        if (watcher := _watcher_here()) is not None:
            watcher.detached(tensor)
        return result

    return kernel


def _resizing(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = unseen(call, args, kwargs)
        if (watcher := _watcher_here()) is not None:
            watcher.resized(args[0], name)
        return result

    return kernel


_NUMPY = {torch.float32: numpy.float32, torch.float64: numpy.float64}


@lru_cache(maxsize=64, typed=True)
def _number(value: float, dtype: torch.dtype) -> Tensor:
    """Return the 2.5 of `x *= 2.5`, which an operator reads in the dtype of x. Not for 0, which equals -0.

    DDP divides each gradient by the number of ranks. Making that number anew releases the GIL four times: when it is
    converted, and when its tensor, its memory and its Python object end.
    """
    # Outside inference mode, because autograd must be able to save it later. A value that is too large becomes
    # infinity, as in torch.
    with torch.inference_mode(False), numpy.errstate(over="ignore"):
        return torch.from_numpy(numpy.array(value, dtype=_NUMPY[dtype]))


_SPECIAL = {
    "_to_copy": _converting,
    "detach": _detaching,
    "set_": _resizing,
    "resize_": _resizing,
    "resize_as_": _resizing,
}

_COMPOSED = {"_pad_packed_sequence", "max_pool1d", "one_hot", "pad_sequence", "vander"}
"""Operators whose result comes of memory that they make without a tensor. A kernel for each operator that is made of
others would find them, too, and take 4 µs in each `linear` and `matmul`."""


def _makes_memory(operator: Any) -> bool:
    if operator._schema.name == "aten::_unsafe_view":  # a view, whatever its schema says
        return False
    composite, cpu = torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.CPU
    if operator.has_kernel_for_dispatch_key(composite) and not operator.has_kernel_for_dispatch_key(cpu):
        return False  # made of other operators, which are watched themselves; with a kernel, only some devices' is
    return any(
        str(value.type) in ("Tensor", "List[Tensor]") and value.alias_info is None for value in operator._schema.returns
    )


def operators_of(namespace: str) -> Iterator[tuple[str, Any]]:
    """Yield torch's operators of a namespace, each with its name: `add.Tensor`."""
    packets = getattr(torch.ops, namespace)
    for qualified in torch._C._dispatch_get_all_op_names():
        its_namespace, _, name = qualified.partition("::")
        packet, _, overload = name.partition(".")
        if its_namespace == namespace and hasattr(packets, packet):
            yield name, getattr(getattr(packets, packet), overload or "default")


def _register() -> list[torch.library.Library]:
    fallthrough, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    fallthrough.fallback(torch.library.fallthrough_kernel, WATCHED_KEY)
    for name, operator in operators_of("aten"):
        packet = name.partition(".")[0]
        if packet in _SPECIAL or _makes_memory(operator):
            kernel = _SPECIAL.get(packet, _making)(operator._op, packet)
            aten.impl(name, untraced(kernel), WATCHED_KEY)
        elif packet in _COMPOSED:
            aten.impl(name, untraced(_composed(operator)), WATCHED_KEY, with_keyset=True)
    return [fallthrough, aten]


def _allocating(device: str) -> Any:
    def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    return untraced(empty_strided)


_libraries = _register()  # kept, because a Library's kernels disappear when it is collected

# Code that torch.compile generates (inductor) allocates with these functions, which call no operator. It keeps them as
# long as the process lives, also for later runs: so they are replaced once, and not in each measured run.
for _device in ("cpu", "cuda"):
    setattr(torch._C._dynamo.guards, f"_empty_strided_{_device}", _allocating(_device))
