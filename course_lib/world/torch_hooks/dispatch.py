"""The dispatch kernels that hand collectives and random operators to a rank's interposer.

They are on a dispatch key that only rank threads have. `TESTING_ONLY_GenericMode` is above autograd and nothing else
uses it. It falls through, at no cost, for every operator without a kernel here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...meter import operators_of, tensors_in
from . import private

if TYPE_CHECKING:
    from ..collectives.rank import InterposedRank

KEY = "TESTING_ONLY_GenericMode"

Current = Callable[[], "InterposedRank | None"]

_BELOW = torch._C._dispatch_keyset_full_after(KEY)
_BACKENDS = {
    "cpu": private.cpu_kernels,
    "cuda": torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA),
}


def _collective_kernel(operator: Any, current: Current) -> Callable[..., Any]:
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


def _functional_library(current: Current) -> torch.library.Library:
    """Return the library of functional collectives, for the CPU: inside a `__torch_dispatch__`, such as that of a
    DTensor's operator, torch excludes `KEY`. `wait_tensor` calls `interposer.waiting` first, and the others enable
    `KEY`."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    for name, operator in operators_of("_c10d_functional"):
        if "group_name" in [argument.name for argument in operator._schema.arguments]:
            library.impl(name, _enabling_kernel(operator), "CPU")
    library.impl("wait_tensor", _waiting_kernel(current), "CPU")
    return library


def _enabling_kernel(operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(KEY)
        torch._C._dispatch_tls_set_dispatch_key_excluded(KEY, False)
        try:
            return operator.redispatch(_BACKENDS["cuda"], *args, **kwargs)  # torch's own kernel for all devices
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(KEY, excluded)

    return kernel


def _waiting_kernel(current: Current) -> Callable[..., Any]:
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


def _random_kernel(operator: Any, current: Current) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(keyset: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        if "generator" in names[: len(args)]:  # a few operators take it by position
            args, generator = args[:-1], args[-1]
        interposer = current()
        # A subclass (DTensor) calls this kernel again with its local tensors, which get the generator.
        plain = not any(isinstance(a, torch.Tensor) and type(a).__torch_dispatch__ is not _no_dispatch for a in args)
        own = None if interposer is None else interposer.generator
        if own is not None and plain and (generator is None or generator._cdata == process_generator._cdata):
            generator = own
        device = kwargs.get("device")
        if generator is not None and device is not None and (generator.device.type, device.type) == ("cpu", "cuda"):
            # `torch.Generator()` belongs to the CPU even if the default device is a GPU. Draw on the CPU: lessons get
            # the same numbers on both.
            drawn = operator.redispatch(keyset & _BELOW, *args, generator=generator, **kwargs | {"device": _CPU})
            return drawn.to(device)
        return operator.redispatch(keyset & _BELOW, *args, generator=generator, **kwargs)

    return kernel


_CPU = torch.device("cpu")
_no_dispatch = torch.Tensor.__torch_dispatch__
process_generator: Any = torch.random.default_generator


def register(current: Current) -> list[torch.library.Library]:
    """Register the kernels on `KEY`. Keep the libraries: a collected library removes its kernels.

    Args:
        current: returns the interposer of the calling thread; None if it has none.
    """
    fallthrough = torch.library.Library("_", "IMPL")
    fallthrough.fallback(torch.library.fallthrough_kernel, KEY)
    libraries = [fallthrough]
    for namespace, telltale, make in (
        ("c10d", "process_group", _collective_kernel),
        ("aten", "generator", _random_kernel),
    ):
        library = torch.library.Library(namespace, "IMPL")
        for name, operator in operators_of(namespace):
            if telltale in [argument.name for argument in operator._schema.arguments]:
                library.impl(name, make(operator, current), KEY, with_keyset=True)
        libraries.append(library)
    return [*libraries, _functional_library(current)]
