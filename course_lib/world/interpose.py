"""The private torch names that make a thread a rank, in one place.

Two mechanisms, both of which torch's own test-suite uses in some form:

*One process-group world for each thread.* `distributed_c10d._world` holds the default group and the maps of
groups; while ranks run it is a proxy that looks into the current thread. torch's C++ registry of group names has
a switch for the same purpose (`_set_thread_isolation_mode`).

*A dispatch key that only rank threads carry.* `TESTING_ONLY_GenericMode` sits above autograd and is used by
nothing else. It falls through, at no cost, for every operator but two families that we register: the `c10d`
collectives, which are handed to the thread's `Interposer` (this sees DDP's C++ reducer, FSDP and functional
collectives too), and the operators that draw random numbers, which get the rank's own generator.

Nothing outside this module touches a private torch name.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..errors import CourseError
from .standins import Replacement, Shared, replaced

_c10d: Any = torch._C._distributed_c10d
_KEY = "TESTING_ONLY_GenericMode"
_NEEDED = {
    "torch._C": (
        torch._C,
        ["_dispatch_tls_set_dispatch_key_included", "_dispatch_keyset_full_after", "_current_graph_task_id"],
    ),
    "torch.autograd.Variable": (torch.autograd.Variable, ["_execution_engine"]),
    "torch._C._distributed_c10d": (
        _c10d,
        ["_set_thread_isolation_mode", "_create_work_from_future"],
    ),
    "torch.distributed.distributed_c10d": (
        c10d,
        ["_world", "ProcessGroupGloo", "_new_process_group_helper", "_warn_not_in_group"],
    ),
    "torch.random": (torch.random, ["default_generator"]),
}


def missing_names() -> list[str]:
    """The private torch names that this module needs and this torch lacks; empty when all is well."""
    return [f"{path}.{name}" for path, (owner, names) in _NEEDED.items() for name in names if not hasattr(owner, name)]


if missing_names():
    raise CourseError(
        f"torch {torch.__version__} lacks {', '.join(missing_names())}, which simulated worlds are built on. "
        "These are private names, which another torch may rename. Install the torch that this course pins: "
        "run `make lab` again, or `pip install torch==2.13.0`."
    )


class Interposer(Protocol):
    """What a thread does with the calls that torch makes on it."""

    @property
    def generator(self) -> torch.Generator:
        """The stream of random numbers of the thread's own."""

    def collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[[], Any]) -> Any:
        """Run a `c10d` operator; `execute()` hands it to the real backend and returns what the operator returns."""

    def new_group(self, group_name: str, ranks: list[int]) -> None:
        """Called before this rank, a member, creates a group; may wait for the other members."""

    def not_in_group(self, op: str) -> None:
        """Called when a collective is asked of a group that this rank does not belong to."""

    def waiting(self, work: Any) -> None:
        """Called before `work.wait()`."""


_thread = threading.local()


def current() -> Interposer | None:
    """The interposer of the calling thread; None outside ranks."""
    return getattr(_thread, "interposer", None)


@contextmanager
def interposed(interposer: Interposer) -> Iterator[None]:
    """Route the calling thread's collectives and random numbers through `interposer`."""
    _thread.interposer = interposer
    _thread.world = _empty_world()
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)
        del _thread.interposer, _thread.world


# -- operators ---------------------------------------------------------------------------------------------------

_BELOW = torch._C._dispatch_keyset_full_after(_KEY)
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_libraries: list[torch.library.Library] = []  # a Library takes its kernels with it when it is collected


def _collective_kernel(operator: Any) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(keyset: Any, *args: Any) -> Any:
        interposer = current()
        if interposer is None:  # a thread that inherited the key, such as one of the autograd engine
            return operator.redispatch(keyset & _BELOW, *args)
        # Straight to the backend's kernel: `execute` may run on another rank's thread, whose autograd state is
        # not this one's.
        return interposer.collective(
            operator, dict(zip(names, args, strict=False)), lambda: operator.redispatch(_CPU, *args)
        )

    return kernel


def _random_kernel(operator: Any) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        interposer = current()
        # A subclass (DTensor) comes back here with its local tensors; those get the generator.
        plain = not any(isinstance(a, torch.Tensor) and type(a).__torch_dispatch__ is not _no_dispatch for a in args)
        if interposer is not None and plain and (generator is None or generator._cdata == _process_generator._cdata):
            generator = interposer.generator
        return operator.redispatch(keyset & _BELOW, *args, generator=generator, **kwargs)

    return kernel


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


def group_of(boxed: Any) -> dist.ProcessGroup:
    """The process group behind the boxed argument of a `c10d` operator."""
    return dist.ProcessGroup.unbox(boxed)


def groups() -> list[dist.ProcessGroup]:
    """Every group that the calling rank is in."""
    return list(c10d._world.pg_names)


def group_ranks(group: dist.ProcessGroup) -> tuple[int, ...]:
    """The global ranks of `group`'s members, in the order of their group ranks."""
    by_global = c10d._world.pg_group_ranks[group]
    return tuple(sorted(by_global, key=by_global.__getitem__))


def reduce_op_name(boxed: Any) -> str:
    """`"sum"`, `"max"`, ... of the boxed argument of a `c10d` operator."""
    return dist.ReduceOp.RedOpType(boxed.op()).name.lower()


def work_of(result: Any) -> Any:
    """The Work in what a `c10d` operator returned: alone, or after its tensors."""
    return dist.Work.unbox(result[1] if isinstance(result, tuple) else result)


def at_end_of_backward(arrived: Callable[[], None], passed: Callable[[], None]) -> bool:
    """Call `arrived` when the backward pass that this thread is in has computed every gradient, and `passed` after
    what others had queued for its end: there, in C++, DDP waits for its buckets.

    Returns False, and calls nothing, outside of a backward pass.
    """
    if torch._C._current_graph_task_id() == -1:
        return False
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def end() -> None:
        arrived()
        queue(passed)

    queue(end)
    return True


def pending_result(operator: Any, arguments: dict[str, Any], future: Any) -> tuple[Any, Any]:
    """What an asynchronous `operator` returns while `future` is open, and its Work.

    Keep the Work: as long as it lives, torch hands this very object to the caller.
    """
    work = _c10d._create_work_from_future(future)
    outputs = next(iter(arguments.values()))
    return ((outputs, work.boxed()) if len(operator._schema.returns) == 2 else work.boxed()), work


# -- process groups ----------------------------------------------------------------------------------------------


def _empty_world() -> SimpleNamespace:
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
        return getattr(_process_generator if interposer is None else interposer.generator, name)


class _Loopback:
    """gloo's network device, made once and shared by all ranks.

    A device owns one thread that serves sockets. Closing a connection waits for that thread's next turn, which
    comes every 10 ms when nothing happens; with a device for each rank, a run of four ranks takes 60 ms to leave.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._device: Any = None
        self._pulse: list[Any] = []

    def options(self, timeout: timedelta, threads: int = 2) -> Any:
        with self._lock:
            if self._device is None:
                self._device = _Gloo.create_device(hostname="127.0.0.1", lazy_init=False)
        options = _Gloo._Options()
        options._devices, options._threads, options._timeout = [self._device], threads, timeout
        return options

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Keep the device's thread turning while groups are closed inside the block: 1 ms in place of 20."""
        with self._closing:
            if not self._pulse:
                store = dist.HashStore()
                options = self.options(timedelta(seconds=10), threads=1)
                self._pulse = _in_threads(lambda rank: _Gloo(store, rank, 2, options), count=2)
            stop = torch.zeros(1)  # summed by the beat itself: both sides see it in the same one

            def beat(rank: int) -> None:
                message = torch.zeros(1)
                while not message.item():
                    message = stop.clone()
                    self._pulse[rank].allreduce([message]).wait()

            threads = _start_threads(beat, count=2)
            try:
                yield
            finally:
                stop.fill_(1)
                for thread in threads:
                    thread.join()

    def close(self) -> None:
        """Let go of the device while Python is still there: C++ would end the process over its running thread."""
        with self._closing, self._lock:
            self._pulse, self._device = [], None


def _in_threads(fn: Callable[[int], Any], count: int) -> list[Any]:
    results: list[Any] = [None] * count

    def call(index: int) -> None:
        results[index] = fn(index)

    for thread in _start_threads(call, count):
        thread.join()
    return results


def _start_threads(fn: Callable[[int], None], count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=fn, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    return threads


_Gloo: Any = c10d.ProcessGroupGloo
loopback = _Loopback()
atexit.register(loopback.close)


class _LoopbackGloo(_Gloo):
    """`ProcessGroupGloo` on the shared device; made by `init_process_group` and `new_group` while ranks run."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(store, rank, size, loopback.options(timeout))


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


def _stand_ins() -> Iterator[Replacement]:
    yield c10d, "_world", _WorldOfThread(c10d._world)
    yield c10d, "ProcessGroupGloo", _LoopbackGloo
    yield c10d, "_new_process_group_helper", _gated_group_helper(c10d._new_process_group_helper)
    yield c10d, "_warn_not_in_group", _told_not_in_group(c10d._warn_not_in_group)
    yield dist.Work, "wait", _announced_wait(dist.Work.wait)
    yield torch.random, "default_generator", _GeneratorOfThread()


@contextmanager
def _rank_threads() -> Iterator[None]:
    _c10d._set_thread_isolation_mode(True)  # a registry of group names for each thread, in torch's C++ part
    try:
        with replaced(_stand_ins()):
            yield
    finally:
        _c10d._set_thread_isolation_mode(False)


rank_threads = Shared(_rank_threads)
"""While it is in use, threads may be `interposed`."""
