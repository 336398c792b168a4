"""What makes a thread a rank: its collectives, groups and random numbers go through an `Interposer` of its own.

A process that is a rank has one for all its threads, with the groups and random numbers of the process.

Two mechanisms, both of which torch's own test-suite uses in some form:

*One process-group world for each thread.* `distributed_c10d._world` holds the default group and the maps of
groups; while ranks run it is a proxy that looks into the current thread. torch's C++ registry of group names has
a switch for the same purpose (`_set_thread_isolation_mode`).

*A dispatch key that only rank threads carry* (`kernels`). Of all operators it stops two families: the `c10d`
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
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.utils.hooks import RemovableHandle

from . import dispatch, private
from .gloo import LoopbackGloo
from .patching import Replacement, SharedContext, replaced


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

    def waiting(self, waited: Any) -> None:
        """Called before `waited.wait()` of a Work, and before `wait_tensor(waited)` of a functional collective. Returns
        when the result is there; raises what ended the call or the run."""


class ThreadInterposer(Interposer, Protocol):
    """One that is for a single thread, among others."""

    @property
    def groups(self) -> SimpleNamespace:
        """The process groups of the thread's own; `no_groups()` at first."""


_thread = threading.local()
_process = SimpleNamespace(interposer=None, hooks=None)


def current() -> Interposer | None:
    """The interposer of the calling thread; None outside ranks."""
    interposer: Interposer | None = getattr(_thread, "interposer", _process.interposer)
    return interposer


_libraries = dispatch.register(current)


@contextmanager
def interposed(interposer: ThreadInterposer) -> Iterator[None]:
    """Route the calling thread's groups, collectives and random numbers through `interposer`."""
    before, included = dict(vars(_thread)), torch._C._dispatch_tls_is_dispatch_key_included(dispatch.KEY)
    _thread.interposer, _thread.world, _thread.hooks = interposer, interposer.groups, []
    torch._C._dispatch_tls_set_dispatch_key_included(dispatch.KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(dispatch.KEY, included)
        _remove(_thread.hooks)
        vars(_thread).clear()
        vars(_thread).update(before)


@contextmanager
def interposed_process(interposer: Interposer) -> Iterator[None]:
    """Route the collectives of this process through `interposer`: of the calling thread, and of autograd's threads,
    which inherit its dispatch key."""
    with replaced(_stand_ins_of_ranks()):
        _process.interposer, _process.hooks = interposer, []
        torch._C._dispatch_tls_set_dispatch_key_included(dispatch.KEY, True)
        try:
            yield
        finally:
            torch._C._dispatch_tls_set_dispatch_key_included(dispatch.KEY, False)
            _remove(_process.hooks)
            _process.interposer = _process.hooks = None


# -- hooks ---------------------------------------------------------------------------------------------------------


def _noted(register: Callable[..., RemovableHandle]) -> Callable[..., RemovableHandle]:
    """Hooks of this kind end with the rank that registered them. Python's collector cannot see them: what they hold,
    which often is the model and so the parameter that holds them, would be there for ever."""

    def register_post_accumulate_grad_hook(tensor: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
        handle = register(tensor, hook)
        hooks: list[RemovableHandle] | None = getattr(_thread, "hooks", _process.hooks)
        if hooks is not None:
            hooks.append(handle)
        return handle

    return register_post_accumulate_grad_hook


def _remove(hooks: list[RemovableHandle]) -> None:
    for handle in hooks:
        handle.remove()


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
        pg_flight_recorder_hooks={},  # since torch 2.15
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
        return getattr((interposer and interposer.generator) or dispatch.process_generator, name)


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
            if (args or kwargs) and work.is_completed():  # a Work of ours refuses a timeout
                return wait(work)
        return wait(work, *args, **kwargs)

    return announce


def _stand_ins_of_ranks() -> Iterator[Replacement]:
    yield c10d, "ProcessGroupGloo", LoopbackGloo
    # At the level DETAIL, torch wraps each group, so that a call first compares itself with the other ranks' calls. The
    # world has compared them already, and the wrapper's own wait never ends on simulated ranks and crashes DDP on
    # processes. DDP reads the level elsewhere, and still names parameters.
    yield c10d, "get_debug_level", lambda: dist.DebugLevel.OFF
    yield c10d, "_new_process_group_helper", _gated_group_helper(c10d._new_process_group_helper)
    yield c10d, "_warn_not_in_group", _told_not_in_group(c10d._warn_not_in_group)
    yield dist.Work, "wait", _announced_wait(dist.Work.wait)
    yield Tensor, "register_post_accumulate_grad_hook", _noted(Tensor.register_post_accumulate_grad_hook)


def _stand_ins() -> Iterator[Replacement]:
    yield c10d, "_world", _WorldOfThread(c10d._world)
    yield from _stand_ins_of_ranks()
    yield torch.random, "default_generator", _GeneratorOfThread()


@contextmanager
def _rank_threads() -> Iterator[None]:
    private.native._set_thread_isolation_mode(True)  # each thread its own registry of group names, in C++
    try:
        with replaced(_stand_ins()):
            yield
    finally:
        private.native._set_thread_isolation_mode(False)


rank_threads = SharedContext(_rank_threads)
"""While it is in use, threads may be `interposed`."""
