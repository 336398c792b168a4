"""The redirection that makes a thread a rank: its collectives, groups and random numbers go through its interposer, an
`InterposedRank`. A process that is a rank has one interposer for all its threads.

torch's own test suite uses some form of both mechanisms:

*One process-group world for each thread.* `distributed_c10d._world` holds the default group and the maps of groups.
While ranks run, a proxy replaces it and looks up the current thread. torch's C++ registry of group names has a switch
for the same purpose (`_set_thread_isolation_mode`).

*A dispatch key that only rank threads have* (see `dispatch`). It intercepts two families of operators. The `c10d`
collectives go to the thread's interposer, including those of DDP's C++ reducer, of FSDP and of functional
collectives. Operators that draw random numbers get the rank's own generator.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.nn.modules import module as of_modules
from torch.utils.hooks import RemovableHandle

from . import default_group, dispatch, loss_parallel, private
from .dispatch import current as current  # which others ask for here
from .dispatch import process, thread
from .gloo import LoopbackGloo
from .patching import Replacement, replaced

if TYPE_CHECKING:
    from ..collectives.rank import InterposedRank


@contextmanager
def interposed(interposer: InterposedRank, groups: SimpleNamespace | None = None) -> Iterator[None]:
    """Route the calling thread's collectives and random numbers through `interposer`, and keep its process groups in
    `groups`: at first `no_groups()`. None: its groups and hooks are those of the process."""
    before, hooks = dict(vars(thread)), list[RemovableHandle]()
    thread.interposer = interposer
    if groups is not None:
        thread.world, thread.hooks = groups, hooks
    try:
        with _key_included():
            yield
    finally:
        _remove(hooks)
        vars(thread).clear()
        vars(thread).update(before)


@contextmanager
def interposed_process(interposer: InterposedRank) -> Iterator[None]:
    """Route this process's collectives through `interposer`: of this thread, and of autograd's, which inherit its
    key."""
    with replaced(_replacements_of_ranks()):
        process.interposer, process.hooks = interposer, []
        try:
            with _key_included():
                yield
        finally:
            _remove(process.hooks)
            process.interposer = process.hooks = None


def is_interposed() -> bool:
    """Return whether the calling thread has an interposer of its own, not only its process."""
    return hasattr(thread, "interposer")


@contextmanager
def _key_included() -> Iterator[None]:
    """Let torch dispatch the calling thread's operators to our kernels."""
    included = torch._C._dispatch_tls_is_dispatch_key_included(dispatch.KEY)
    torch._C._dispatch_tls_set_dispatch_key_included(dispatch.KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(dispatch.KEY, included)


# -- hooks ---------------------------------------------------------------------------------------------------------


def _removed_with_rank(register: Callable[..., RemovableHandle]) -> Callable[..., RemovableHandle]:
    """Return a `register` whose hooks end with the rank. Python's garbage collector cannot see these hooks: they often
    hold the model, and so the parameter that holds them, and would stay forever."""

    def register_post_accumulate_grad_hook(tensor: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
        handle = register(tensor, hook)
        hooks: list[RemovableHandle] | None = getattr(thread, "hooks", process.hooks)
        if hooks is not None:
            hooks.append(handle)
        return handle

    return register_post_accumulate_grad_hook


def _remove(hooks: list[RemovableHandle]) -> None:
    for handle in hooks:
        handle.remove()


class _HooksOfRanks(OrderedDict[int, Callable[..., Any]]):
    """A replacement for one of torch's tables of hooks on all modules, such as those of `FlopCounterMode`.

    torch keeps them for the whole process. While threads are ranks, a hook runs only on the rank that registered it.
    """

    def __setitem__(self, number: int, hook: Callable[..., Any]) -> None:
        rank = current()  # None for hooks that the process has registered

        def only_on_rank(*args: Any, **kwargs: Any) -> Any:
            return hook(*args, **kwargs) if current() is rank else None

        super().__setitem__(number, hook if rank is None else only_on_rank)


# -- process groups ----------------------------------------------------------------------------------------------


def no_groups() -> SimpleNamespace:
    """Return the content of `distributed_c10d._world` before `init_process_group`."""
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
    """A replacement for `distributed_c10d._world`: each rank's own, and the process's on other threads."""

    def __init__(self, process_world: Any) -> None:
        object.__setattr__(self, "process_world", process_world)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(thread, "world", self.process_world), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(getattr(thread, "world", self.process_world), name, value)


def _gated_group_helper(helper: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(
        size: int, rank: int, ranks: list[int], backend: Any, store: Any, group_name: str, *args: Any, **kwargs: Any
    ) -> Any:
        interposer = current()
        with interposer.shielded() if interposer is not None else nullcontext():  # peers wait in C++ for a member
            if interposer is not None and ranks and dist.get_rank() in ranks:
                interposer.new_group(str(group_name), list(ranks))
            group, group_store = helper(size, rank, ranks, backend, store, group_name, *args, **kwargs)
        if interposer is not None and group_store is not None:  # the rank is a member
            interposer.groups.append(group)
        return group, group_store

    return new_group


def _reported_not_in_group(warn: Callable[[str], None]) -> Callable[[str], None]:
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
            if (args or kwargs) and work.is_completed():  # our own Work accepts no timeout
                return wait(work)
        return wait(work, *args, **kwargs)

    return announce


def _announced_question(question: Callable[..., Any]) -> Callable[..., Any]:
    def announce(work: Any) -> Any:
        if (interposer := current()) is not None:
            interposer.asked(work)
        return question(work)

    return announce


def _replacements_of_ranks() -> Iterator[Replacement]:
    yield c10d, "ProcessGroupGloo", LoopbackGloo
    # At the level DETAIL, torch wraps each group to compare the ranks' calls first. The world has compared them before.
    # The wrapper's own wait never ends on simulated ranks, and crashes DDP on processes. DDP reads the level elsewhere,
    # and still names parameters.
    yield c10d, "get_debug_level", lambda: dist.DebugLevel.OFF
    yield from default_group.replacements()
    yield c10d, "_new_process_group_helper", _gated_group_helper(c10d._new_process_group_helper)
    yield c10d, "_warn_not_in_group", _reported_not_in_group(c10d._warn_not_in_group)
    yield dist.Work, "wait", _announced_wait(dist.Work.wait)
    for question in ("get_future", "is_completed", "synchronize"):
        yield dist.Work, question, _announced_question(getattr(dist.Work, question))
    yield torch._ops, "_compute_keyset", dispatch.keys_without_ours(torch._ops._compute_keyset)
    yield Tensor, "register_post_accumulate_grad_hook", _removed_with_rank(Tensor.register_post_accumulate_grad_hook)


def _made_once(make: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Return `make`, by which threads that ask at once for an operator get one object.

    torch's C++ code keeps the first object that it is given of an operator, without a reference. If a second thread
    made its own, that would replace the first, Python would free it, and the next call would crash the process.
    """

    def made(holder: Any, name: str) -> Any:
        with _operators:
            known = vars(holder)
            return known[name] if name in known else make(holder, name)

    return made


_operators = threading.RLock()


def _replacements() -> Iterator[Replacement]:
    yield c10d, "_world", _WorldOfThread(c10d._world)
    yield from _replacements_of_ranks()
    yield from loss_parallel.replacements()
    for name, hooks in vars(of_modules).items():
        if name.startswith("_global_") and name.endswith("_hooks"):
            yield of_modules, name, _HooksOfRanks(hooks)
    for module in (torch, torch.random):
        yield module, "default_generator", dispatch.default_generator
    for maker in private.MAKERS_OF_OPERATORS:
        yield maker, "__getattr__", _made_once(maker.__getattr__)


@contextmanager
def rank_threads() -> Iterator[None]:
    """Let threads be `interposed` inside the block."""
    private.keep_device_guard()
    private.free_locks_in_forks()
    private.native._set_thread_isolation_mode(True)  # a registry of group names for each thread, in C++
    try:
        with replaced(_replacements()):
            yield
    finally:
        private.native._set_thread_isolation_mode(False)
