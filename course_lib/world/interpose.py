"""What makes a thread a rank: its collectives, groups and random numbers go through an `Interposer` of its own.

A process that is a rank has one for all its threads, with the groups and random numbers of the process.

Two mechanisms, both of which torch's own test-suite uses in some form:

*One process-group world for each thread.* `distributed_c10d._world` holds the default group and the maps of
groups; while ranks run it is a proxy that looks into the current thread. torch's C++ registry of group names has
a switch for the same purpose (`_set_thread_isolation_mode`).

*A dispatch key that only rank threads carry.* `TESTING_ONLY_GenericMode` sits above autograd and is used by
nothing else. It falls through, at no cost, for every operator but two families that we register: the `c10d`
collectives, which are handed to the thread's `Interposer` (this sees DDP's C++ reducer, FSDP and functional
collectives too), and the operators that draw random numbers, which get the rank's own generator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import torch_internals  # first: it says clearly when this torch lacks a name
from .arguments import tensors_in
from .gloo import LoopbackGloo
from .standins import Replacement, Shared, replaced

_KEY = "TESTING_ONLY_GenericMode"


class Interposer(Protocol):
    """What a thread does with the calls that torch makes on it."""

    @property
    def generator(self) -> torch.Generator | None:
        """The stream of random numbers of the thread's own; None for that of the process."""

    def collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[..., Any]) -> Any:
        """Run a `c10d` operator. `execute(*arguments.values())`, with these tensors or others that share their memory,
        hands it to the real backend and returns what the operator returns."""

    def new_group(self, group_name: str, ranks: list[int]) -> None:
        """Called before this rank, a member, creates a group; may wait for the other members."""

    def not_in_group(self, op: str) -> None:
        """Called when a collective is asked of a group that this rank does not belong to."""

    def waiting(self, work: Any) -> None:
        """Called before `work.wait()`."""


class ThreadInterposer(Interposer, Protocol):
    """One that is for a single thread, among others."""

    @property
    def groups(self) -> SimpleNamespace:
        """The process groups of the thread's own; `no_groups()` at first."""


_thread = threading.local()
_process = SimpleNamespace(interposer=None)


def current() -> Interposer | None:
    """The interposer of the calling thread; None outside ranks."""
    interposer: Interposer | None = getattr(_thread, "interposer", _process.interposer)
    return interposer


@contextmanager
def interposed(interposer: ThreadInterposer) -> Iterator[None]:
    """Route the calling thread's groups, collectives and random numbers through `interposer`."""
    before, included = dict(vars(_thread)), torch._C._dispatch_tls_is_dispatch_key_included(_KEY)
    _thread.interposer, _thread.world = interposer, interposer.groups
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, included)
        vars(_thread).clear()
        vars(_thread).update(before)


@contextmanager
def interposed_process(interposer: Interposer) -> Iterator[None]:
    """Route the collectives of this process through `interposer`: of the calling thread, and of autograd's threads,
    which inherit its dispatch key."""
    with replaced(_stand_ins_of_groups()):
        _process.interposer = interposer
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
        try:
            yield
        finally:
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)
            _process.interposer = None


# -- operators ---------------------------------------------------------------------------------------------------

_BELOW = torch._C._dispatch_keyset_full_after(_KEY)
_BACKENDS = {
    "cpu": torch._C.DispatchKeySet(torch._C.DispatchKey.CPU),
    "cuda": torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA),
}
_libraries: list[torch.library.Library] = []  # a Library takes its kernels with it when it is collected


def _collective_kernel(operator: Any) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(keyset: Any, *args: Any) -> Any:
        interposer = current()
        if interposer is None:  # a thread that inherited the key, such as one of the autograd engine
            return operator.redispatch(keyset & _BELOW, *args)
        # Straight to the backend's kernel: `execute` may run on another rank's thread, whose autograd state is
        # not this one's.
        backend = _BACKENDS.get(next(tensors_in(args)).device.type, _BACKENDS["cpu"])
        return interposer.collective(
            operator, dict(zip(names, args, strict=False)), lambda *lent: operator.redispatch(backend, *lent)
        )

    return kernel


def _random_kernel(operator: Any) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(keyset: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        if "generator" in names[: len(args)]:  # a few operators take it by position
            args, generator = args[:-1], args[-1]
        interposer = current()
        # A subclass (DTensor) comes back here with its local tensors; those get the generator.
        plain = not any(isinstance(a, torch.Tensor) and type(a).__torch_dispatch__ is not _no_dispatch for a in args)
        own = None if interposer is None else interposer.generator
        if own is not None and plain and (generator is None or generator._cdata == _process_generator._cdata):
            generator = own
        device = kwargs.get("device")
        if generator is not None and device is not None and (generator.device.type, device.type) == ("cpu", "cuda"):
            # `torch.Generator()` is one of the CPU's, also where the default device is a GPU: the numbers are those
            # that lessons draw on the CPU.
            drawn = operator.redispatch(keyset & _BELOW, *args, generator=generator, **kwargs | {"device": _CPU})
            return drawn.to(device)
        return operator.redispatch(keyset & _BELOW, *args, generator=generator, **kwargs)

    return kernel


_CPU = torch.device("cpu")
_no_dispatch = torch.Tensor.__torch_dispatch__
_process_generator: Any = torch.random.default_generator


def _overloads(namespace: Any, names: list[str]) -> Iterator[Any]:
    for name in names:
        packet = getattr(namespace, name, None)
        for overload in packet.overloads() if packet is not None else ():
            yield getattr(packet, overload)


def _names_in(namespace: str) -> list[str]:
    qualified = torch._C._dispatch_get_all_op_names()
    return sorted({q.split("::")[1].split(".")[0] for q in qualified if q.startswith(f"{namespace}::")})


def _register() -> None:
    fallthrough = torch.library.Library("_", "IMPL")
    fallthrough.fallback(torch.library.fallthrough_kernel, _KEY)
    _libraries.append(fallthrough)
    for namespace, wanted, make in (
        ("c10d", lambda names: "process_group" in names, _collective_kernel),
        ("aten", lambda names: "generator" in names, _random_kernel),
    ):
        library = torch.library.Library(namespace, "IMPL")
        for operator in _overloads(getattr(torch.ops, namespace), _names_in(namespace)):
            if wanted([argument.name for argument in operator._schema.arguments]):
                qualified = operator._schema.name.split("::")[1]
                if operator._schema.overload_name:
                    qualified += "." + operator._schema.overload_name
                library.impl(qualified, make(operator), _KEY, with_keyset=True)
        _libraries.append(library)


_register()


# -- process groups ----------------------------------------------------------------------------------------------


def no_groups() -> SimpleNamespace:
    """What `distributed_c10d._world` holds before `init_process_group`."""
    return SimpleNamespace(
        default_pg=None,
        pg_map={},
        pg_names={},
        pg_group_ranks={},
        pg_backend_config={},
        group_count=0,
        tags_to_pg={},
        pg_to_tag={},
        pg_coalesce_state={},
        comms=[],
        pg_config_info=[],
    )


class _WorldOfThread:
    """Stands in for `distributed_c10d._world`: each rank's own, and the process's for every other thread."""

    def __init__(self, process_world: Any) -> None:
        object.__setattr__(self, "process_world", process_world)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_thread, "world", self.process_world), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(getattr(_thread, "world", self.process_world), name, value)


class _GeneratorOfThread:
    """Stands in for `torch.default_generator`: `torch.manual_seed` and its kin look it up on every call."""

    def __getattr__(self, name: str) -> Any:
        interposer = current()
        return getattr((interposer and interposer.generator) or _process_generator, name)


def _gated_group_helper(helper: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(
        size: int, rank: int, ranks: list[int], backend: Any, store: Any, group_name: str, *args: Any, **kwargs: Any
    ) -> Any:
        interposer = current()
        if interposer is not None and ranks and dist.get_rank() in ranks:
            interposer.new_group(str(group_name), list(ranks))
        return helper(size, rank, ranks, backend, store, group_name, *args, **kwargs)

    return new_group


def _told_not_in_group(warn: Callable[[str], None]) -> Callable[[str], None]:
    def not_in_group(op: str) -> None:
        interposer = current()
        if interposer is None:
            warn(op)
        else:
            interposer.not_in_group(op)

    return not_in_group


def _announced_wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    def announce(work: Any, *args: Any, **kwargs: Any) -> Any:
        interposer = current()
        if interposer is not None:
            interposer.waiting(work)
        return wait(work, *args, **kwargs)

    return announce


def _stand_ins_of_groups() -> Iterator[Replacement]:
    yield c10d, "ProcessGroupGloo", LoopbackGloo
    yield c10d, "_new_process_group_helper", _gated_group_helper(c10d._new_process_group_helper)
    yield c10d, "_warn_not_in_group", _told_not_in_group(c10d._warn_not_in_group)
    yield dist.Work, "wait", _announced_wait(dist.Work.wait)


def _stand_ins() -> Iterator[Replacement]:
    yield c10d, "_world", _WorldOfThread(c10d._world)
    yield from _stand_ins_of_groups()
    yield torch.random, "default_generator", _GeneratorOfThread()


@contextmanager
def _rank_threads() -> Iterator[None]:
    torch_internals.native._set_thread_isolation_mode(True)  # each thread its own registry of group names, in C++
    try:
        with replaced(_stand_ins()):
            yield
    finally:
        torch_internals.native._set_thread_isolation_mode(False)


rank_threads = Shared(_rank_threads)
"""While it is in use, threads may be `interposed`."""
