"""The simulated backend: ranks are threads of this process, with real gloo between them.

Nothing is kept between runs: groups, threads and sockets are made in a few milliseconds, and closed before the run
returns.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler
from torch.library import Library

from ..errors import CourseError
from ..meter import gpu_bytes
from .errors.message import error_of
from .errors.rank_error import Kept
from .learner_code import importing
from .rank_threads import process_state
from .rank_threads.coordinator import ThreadCoordinator
from .rank_threads.own_modules import Variables
from .rank_threads.rank_thread import RankThread
from .rank_threads.supervisor import run_ranks
from .run import Order, Run
from .torch_hooks import interposer, private
from .torch_hooks.gloo import loopback
from .torch_hooks.gpus import pretended
from .torch_hooks.patching import Replacement

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

MAX_RANKS = 64  # the most ranks of a simulated world
MOST_FILES = 2**16  # that this process may have open: 64 ranks use 4,032, two for each connection of a group


class Simulated:
    """A world of threads: see `backends.Backend`."""

    def __init__(self, world_size: int, *, gpus: bool | float = False) -> None:
        if not 1 <= world_size <= MAX_RANKS:
            raise CourseError(
                f"World({world_size}): a simulated world has 1 to {MAX_RANKS} ranks, one thread each. "
                f"Choose a number in that range."
            )
        self._world_size, self._gpus = world_size, gpu_bytes(gpus)

    def run(self, order: Order) -> Run:
        loopback.refuse_a_fork()
        _allow_open_files()
        with (
            process_state.of_threads(_refusals(), measure=order.size_of is not None),
            pretended(self._world_size, self._gpus),
        ):
            variables = Variables()
            coordinator = ThreadCoordinator(self._world_size)
            store = dist.HashStore()
            ranks = [
                Rank(store, rank, coordinator, order.packed, order.size_of, self._gpus)
                for rank in range(self._world_size)
            ]
            reports = run_ranks(coordinator, ranks, order.timeout, order.late, order.lines)
            shared = variables.reset() if self._world_size > 1 else []
        kept = Kept(
            output=[rank.rank_state.printed.text for rank in ranks],
            calls=[rank.recorder.calls for rank in ranks],
            spans=coordinator.spans,
            memory=[rank.memory for rank in ranks],
        )
        if coordinator.fault is not None:
            raise error_of(coordinator.fault, reports, order.timeout, kept=kept, shared=shared)
        return Run(results=[rank.result for rank in ranks], kept=kept, shared=shared)


class Rank(RankThread):
    """One rank of a simulated world."""

    def __init__(self, store: dist.Store, *thread: Any) -> None:
        super().__init__(*thread)
        self.store = store
        self._threads = max(1, torch.get_num_threads() // self.coordinator.world_size)

    def join_group(self, store: dist.Store) -> None:
        torch.set_num_threads(self._threads)  # its part of the cores, like torchrun; see process_state.py
        private.stop_timing_fsdp()
        super().join_group(store)


def _allow_open_files() -> None:
    """Let this process have many files open. gloo ends it, the kernel included, when it may open no more."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
        if resource.RLIM_INFINITY != soft < wanted:
            with suppress(ValueError, OSError):  # macOS refuses some values below its limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refusals() -> Iterator[Replacement]:
    """Yield refusals of what can run only once at a time in a process, which simulated ranks share.

    torch's profiler crashes the process when two threads start it, or when one starts it that could not prepare it: a
    `profile` with a schedule does so as its `with` ends. torch.export sets flags and patches modules for the
    whole process while it traces. When two threads trace at once, the flags stay set, and DDP refuses every forward.
    torch.fx.symbolic_trace patches every module's call while it traces: when two threads trace, the patch stays. When a
    thread defines an operator again, torch frees the code that a different thread is in.
    """
    for step in ("_prepare_profiler", "_enable_profiler"):
        yield profiler, step, _refused_on_ranks("torch's profiler", getattr(profiler, step))
    yield torch.export, "export", _refused_on_ranks("torch.export", torch.export.export)
    yield torch.export, "draft_export", _refused_on_ranks("torch.export", torch.export.draft_export)
    yield torch.jit, "trace", _refused_on_ranks("torch.jit.trace", torch.jit.trace)
    yield torch.jit, "script", _one_thread_at_a_time(torch.jit.script)
    yield torch.fx.Tracer, "trace", _symbolic_trace_refused_on_ranks(torch.fx.Tracer.trace)
    for owner, name in ((private.CustomOpDef, "__init__"), (Library, "__init__"), (Library, "define")):
        yield owner, name, _operators_refused_on_ranks(getattr(owner, name))


def _refused_on_ranks(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if interposer.current() is not None:
            raise CourseError(
                f"{name} changes the state of the whole process, and simulated ranks share one process. Give each rank "
                'a process: World(…, backend="processes").'
            )
        return function(*args, **kwargs)

    return call


def _one_thread_at_a_time(script: Callable[..., Any]) -> Callable[..., Any]:
    """Let one thread at a time call torch.jit.script, which compiles a module's class once for all."""
    lock = threading.RLock()

    @functools.wraps(script)
    def call(*args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
        with lock:
            return script(*args, _frames_up=_frames_up + 1, **kwargs)  # it looks names up in its caller's frame

    return call


def _symbolic_trace_refused_on_ranks(trace: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse tracing on two or more ranks, unless it is a part of compiling, for which torch holds a lock."""
    refused = _refused_on_ranks("torch.fx.symbolic_trace", trace)

    @functools.wraps(trace)
    def call(tracer: torch.fx.Tracer, *args: Any, **kwargs: Any) -> Any:
        rank = interposer.current()
        allowed = rank is None or rank.world_size == 1 or isinstance(tracer, private.PythonKeyTracer)
        return (trace if allowed else refused)(tracer, *args, **kwargs)

    return call


def _operators_refused_on_ranks(method: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse new operators on two or more ranks. An import may define them: it runs once. torch itself makes libraries
    that only add code to operators, such as at the first `vmap`."""

    @functools.wraps(method)
    def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        rank = interposer.current()
        adds_code_only = method is _LIBRARY and "DEF" not in (*args, *kwargs.values())
        if rank is None or rank.world_size == 1 or adds_code_only or importing(sys._getframe(1)):
            return method(owner, *args, **kwargs)
        raise CourseError(
            "a new operator belongs to the whole process, and simulated ranks share one process. Define it in a file, "
            'and import that file. Or give each rank a process: World(…, backend="processes").'
        )

    return call


_LIBRARY = Library.__init__
