"""The calling thread's interposer, and the dispatch kernels that give it collectives and draw with its generator.

Those of collectives are on a dispatch key that only rank threads have. `TESTING_ONLY_GenericMode` is above autograd and
nothing else uses it. It falls through, at no cost, for every operator without a kernel here.

Inside a `TorchDispatchMode`, torch excludes that key. So the kernels of operators that draw are on `BackendSelect`, the
last key before the backend: `randn`, `dropout` or a mode of the learner's draws with one of these in the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from ...meter import WATCHED_KEY, operators_of, tensors_in, untraced
from ...meter import current as current_meter
from . import private

if TYPE_CHECKING:
    from ..collectives.rank import InterposedRank

KEY = "TESTING_ONLY_GenericMode"
_KEY_BELOW_MODES = "BackendSelect"

_BELOW = torch._C._dispatch_keyset_full_after(KEY)
_BELOW_MODES = torch._C._dispatch_keyset_full_after(_KEY_BELOW_MODES)
_BACKENDS = {
    "cpu": private.cpu_kernels,
    "cuda": torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA),
}

thread = threading.local()
process = SimpleNamespace(interposer=None, hooks=None)
"""The state of a rank, on its thread or in its process: see `interposer`."""


def current() -> InterposedRank | None:
    """Return the interposer of the calling thread; None outside ranks."""
    interposer: InterposedRank | None = getattr(thread, "interposer", process.interposer)
    return interposer


class _GeneratorOfThread(torch.Generator):
    """A replacement for `torch.default_generator`: the rank's own, and the process's on other threads."""

    def __getattribute__(self, name: str) -> Any:
        interposer = current()
        return getattr((interposer and interposer.generator) or _process_generator, name)


_process_generator: Any = torch.random.default_generator
default_generator = _GeneratorOfThread()
_DEFAULTS = {  # addresses
    torch.Generator._cdata.__get__(default_generator),  # type: ignore[attr-defined]  # not of the rank's own
    _process_generator._cdata,
}


def collective_kernel(operator: Any) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]
    # A monitored barrier ends when all members have called; gloo's own would block here, rank after rank.
    waits_only = operator._schema.name == "c10d::monitored_barrier_"

    def kernel(keyset: Any, *args: Any) -> Any:
        interposer = current()
        if interposer is None:  # a thread that inherited the key, such as an autograd thread
            return operator.redispatch(keyset & _BELOW, *args)
        # Skip to the backend's kernel: `execute` may run on another rank's thread, whose autograd state differs.
        backend = _BACKENDS.get(next(tensors_in(args)).device.type, _BACKENDS["cpu"])
        return interposer.collective(
            operator,
            dict(zip(names, args, strict=False)),
            lambda *lent: None if waits_only else operator.redispatch(backend, *lent),
        )

    return kernel


def _functional_library() -> torch.library.Library:
    """Return the library of functional collectives, for the CPU: inside a `__torch_dispatch__`, such as that of a
    DTensor's operator, torch excludes `KEY` and the meter's. `wait_tensor` calls `interposer.waiting` first, and the
    others enable both. Their results are on a pretended GPU if their inputs are, which the `empty` that makes them does
    not show."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    for name, operator in operators_of("_c10d_functional"):
        if "group_name" in [argument.name for argument in operator._schema.arguments]:
            library.impl(name, _enabling_kernel(operator), "CPU")
    library.impl("wait_tensor", _waiting_kernel(), "CPU")
    return library


def _enabling_kernel(operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        excluded = {key: torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in (KEY, WATCHED_KEY)}
        for key in excluded:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        meter = current_meter()
        try:
            with nullcontext() if meter is None else meter.next_to(args):
                return operator.redispatch(_BACKENDS["cuda"], *args, **kwargs)  # torch's own kernel for all devices
        finally:
            for key, was_so in excluded.items():
                torch._C._dispatch_tls_set_dispatch_key_excluded(key, was_so)

    return kernel


def _waiting_kernel() -> Callable[..., Any]:
    operator = torch.ops._c10d_functional.wait_tensor.default

    def kernel(tensor: torch.Tensor) -> Any:
        interposer = current()
        try:
            if interposer is not None:
                interposer.waiting(tensor)
        finally:  # always: torch drops a Work when it is waited for
            result = operator.redispatch(_BACKENDS["cuda"], tensor)
        return result

    return kernel


def _drawing_kernel(operator: Any) -> Callable[..., Any]:
    """Return a kernel that draws from the rank's own generator instead of the default one."""
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(keyset: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        if "generator" in names[: len(args)]:  # a few operators take it by position
            args, generator = args[:-1], args[-1]
        interposer = current()
        own = None if interposer is None else interposer.generator
        if own is not None and (generator is None or generator._cdata in _DEFAULTS):
            generator = own
        return operator.redispatch(keyset & _BELOW_MODES, *args, generator=generator, **kwargs)

    return kernel


def keys_without_ours(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Let `torch._ops._compute_keyset` leave out `KEY` and the meter's. It dispatches higher-order operators, such as
    flex attention or a `torch.autograd.Function` under `vmap`, which know of no kernel that falls through."""
    ours, meters = map(torch._C._parse_dispatch_key, (KEY, WATCHED_KEY))

    def keyset(args: Any, kwargs: Any, considered: Any) -> Any:
        return compute(args, kwargs, considered.remove(ours).remove(meters))

    return keyset


def _making_kernel(operator: Any) -> Callable[..., Any]:
    """Return a kernel that draws on the CPU where the generator belongs to the CPU and the default device is a GPU.
    Lessons get the same numbers on both."""

    def kernel(keyset: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if generator is None or device is None or (generator.device.type, device.type) != ("cpu", "cuda"):
            return operator.redispatch(keyset & _BELOW, *args, generator=generator, **kwargs)
        drawn = operator.redispatch(keyset & _BELOW, *args, generator=generator, **kwargs | {"device": _CPU})
        return drawn.to(device)

    return kernel


_CPU = torch.device("cpu")


def _register() -> list[torch.library.Library]:
    fallthrough = torch.library.Library("_", "IMPL")
    fallthrough.fallback(torch.library.fallthrough_kernel, KEY)
    collectives, aten = torch.library.Library("c10d", "IMPL"), torch.library.Library("aten", "IMPL")
    for name, operator in operators_of("c10d"):
        if "process_group" in [argument.name for argument in operator._schema.arguments]:
            collectives.impl(name, untraced(collective_kernel(operator)), KEY, with_keyset=True)
    for name, operator in operators_of("aten"):
        names = [argument.name for argument in operator._schema.arguments]
        if "generator" in names and "device" in names:
            aten.impl(name, _making_kernel(operator), KEY, with_keyset=True)
        elif "generator" in names and private.runs_on_cpu(operator):
            aten.impl(name, _drawing_kernel(operator), _KEY_BELOW_MODES, with_keyset=True)
    return [fallthrough, collectives, aten, _functional_library()]


_libraries = _register()  # kept, because a Library's kernels disappear when it is collected
