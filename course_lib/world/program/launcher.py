"""A program that starts its ranks itself: the processes that it starts, with `mp.spawn` or `Process`, become a world.

The program runs once, in this process. Under the start method `spawn`, each rank first executes the file as
`__mp_main__`, and then finds its function by name, as `multiprocessing` does. Under `fork`, each rank gets a copy of
its function and of the random state.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.managers import BaseProxy
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue, SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

from ...errors import CourseError
from ...meter import is_learners
from ..errors.rank_error import RankError
from ..pickling.calls import FunctionCall
from ..pickling.kernel_classes import KernelUnpickler
from ..processes.modules import unpack_with_main
from ..rank_threads.main import is_main, unpack_on_rank
from ..rank_threads.rank_state import rank_variables
from ..run import Run
from ..torch_hooks import default_group, interposer
from ..torch_hooks.patching import Replacement, replaced
from .program import Program, is_thread
from .shared_memory import packed

_OF_RANKS = rank_variables(0, 1).keys() | {"GROUP_RANK", "GROUP_WORLD_SIZE"}
"""The environment variables that give a rank its place. Only torchrun sets them."""

_RANDOM: tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...] = (
    (lambda: torch.get_rng_state().numpy(), lambda state: torch.set_rng_state(torch.from_numpy(state))),  # not measured
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
)
"""The random states that a fork copies: the functions that get and set each."""

Runner = Callable[[int, Callable[[], Any]], Run]
"""A function that calls a function on each of so many ranks."""


@dataclass(frozen=True, kw_only=True)
class _Started:
    """What the ranks run.

    Attributes:
        calls: the packed call of each rank, or one call for all ranks.
        numbered: whether each rank gets its number as the first argument.
        environ: the variables of `_OF_RANKS` that are set in the process that starts the ranks; None if torchrun's own
            function starts them.
        random_states: the random states of the process that forks; None if the ranks are spawned.
    """

    program: Program
    calls: tuple[bytes, ...]
    numbered: bool
    environ: dict[str, str] | None
    random_states: list[Any] | None

    def __call__(self) -> Any:
        rank: Any = interposer.current()
        if self.environ is not None:
            for name in _OF_RANKS:
                os.environ.pop(name, None)
        with self.program.started(self.program.variables() if self.environ is None else self.environ):
            call, numbers = self.calls[rank.rank % len(self.calls)], [rank.rank] if self.numbered else []
            if self.random_states is None:
                with self.program.main("__mp_main__") as execute:
                    execute()
                    fn, args, kwargs = pickle.loads(call)
                    fn(*numbers, *args, **kwargs)
            else:
                for (_, set_state), state in zip(_RANDOM, self.random_states, strict=True):
                    set_state(state)
                own = KernelUnpickler(call, own_classes=True)
                (fn, args, kwargs), main = unpack_on_rank(own) if is_thread() else unpack_with_main(call)
                with is_main(main):
                    fn(*numbers, *args, **kwargs)
        return rank.value


def _keep_value(fn: Callable[..., Any], *args: Any) -> None:
    """Call `fn` on a rank, and keep what it returns as the rank's value."""
    rank: Any = interposer.current()
    rank.value = fn(*args)


def launch(program: Program, run: Runner) -> Run:
    """Run a program that starts its ranks itself in this process, and return the last run of its ranks.

    Raises:
        RankError: its ranks failed, and it did not catch that, or none of its runs ended well.
        CourseError: the program started no ranks.
    """
    launcher = _Launcher(program, run)
    with _own_start_method(), replaced(launcher.replacements()), program.main("__main__") as execute:
        execute()
        launcher.run_started()
    if not launcher.runs:
        raise launcher.failure or CourseError(
            f"{program.path} contains calls that start ranks, such as mp.spawn, and made none of them in this run. "
            "Pass the arguments with which it makes them."
        )
    return launcher.runs[-1]


class _Launcher:
    """The starter of one program's ranks.

    Attributes:
        runs: the runs that have ended well.
        failure: that of the last run that failed, if any. The program may have caught it.
    """

    def __init__(self, program: Program, run: Runner) -> None:
        self.runs: list[Run] = []
        self.failure: RankError | None = None
        self._program, self._run = program, run
        self._waiting: list[BaseProcess] = []  # processes that the program has started, and that do not run yet

    def run_started(self) -> None:
        started: list[Any] = self._waiting
        self._waiting = []
        if started:
            method = getattr(started[0], "_start_method", None) or multiprocessing.get_start_method()
            self._launch([(one._target, one._args, one._kwargs) for one in started], len(started), method)

    def _launch(
        self,
        calls: Sequence[FunctionCall],
        ranks: int,
        method: str,
        *,
        numbered: bool = False,
        elastic: bool = False,
    ) -> None:
        forked = method == "fork"
        try:
            packed_calls = tuple(packed(call, forked=forked) for call in calls)
        except RuntimeError as error:  # multiprocessing's, which names the object's class
            raise CourseError(
                f"an argument cannot be copied to the ranks ({error}). Next: instead of a queue or lock, pass "
                "`mp.Manager().Queue()` or `mp.Manager().dict()`, or collect results with `dist.gather_object`."
            ) from None
        started = _Started(
            program=self._program,
            calls=packed_calls,
            numbered=numbered,
            environ=None if elastic else {name: os.environ[name] for name in _OF_RANKS & os.environ.keys()},
            random_states=[get_state() for get_state, _ in _RANDOM] if forked else None,
        )
        try:
            self.runs.append(self._run(ranks, started))
        except RankError as error:
            self.failure = error
            raise

    # -- instead of multiprocessing's functions --------------------------------------------------------------------

    def replacements(self) -> Iterator[Replacement]:
        start = BaseProcess.start

        def start_later(process: Any) -> None:
            by_program = interposer.current() is None and is_learners(sys._getframe(1).f_code)
            if not by_program or type(process).run is not BaseProcess.run:
                start(process)
                return
            process._popen = _Waiting(self)
            self._waiting.append(process)

        yield BaseProcess, "start", start_later
        for owner, name in ((Queue, "get"), (SimpleQueue, "get"), (BaseProxy, "_callmethod")):
            yield owner, name, self._after_start(getattr(owner, name))
        for module in (dist, c10d, device_mesh):
            yield module, "init_process_group", self._init_process_group
        for module in (mp, sys.modules["torch.multiprocessing.spawn"]):  # `spawn` there calls `start_processes`
            yield module, "start_processes", self._start_processes

        if b"elastic_launch" in self._program.source or b"notebook_launcher" in self._program.source:
            yield self._of_elastic()

    def _init_process_group(self, *args: Any, **kwargs: Any) -> None:
        """Make a default group of the process that starts ranks, unless it would wait there for ranks that do not run
        yet."""
        if self._waiting and kwargs.get("world_size") != 1:
            raise ValueError(
                f"the process that starts {len(self._waiting)} of the ranks would be a rank, too. It would wait here "
                "for the others forever: they begin when it calls join. Start every rank as a Process, rank 0 also. Or "
                'start none: let each rank read its number from os.environ["RANK"], as under torchrun.'
            )
        default_group.init(*args, **kwargs)

    def _after_start(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, a queue's `get` or any method of a manager's object, so that a `get` runs the ranks first."""

        def get(*args: Any, **kwargs: Any) -> Any:
            if "get" in (call.__name__, *args[1:2]):
                self.run_started()
            return call(*args, **kwargs)

        return get

    def _of_elastic(self) -> Replacement:
        """Return the replacement of the function behind torchrun."""
        from torch.distributed.launcher.api import elastic_launch  # it takes a while to load

        def launch_elastic(agent: Any, *args: Any) -> dict[int, Any]:
            config = agent._config
            calls: list[FunctionCall] = [(_keep_value, (agent._entrypoint, *args), {})]
            self._launch(calls, config.nproc_per_node, config.start_method, elastic=True)
            run = self.runs[-1]
            return dict(zip(run._ranks, run, strict=True))

        return elastic_launch, "__call__", launch_elastic

    def _start_processes(
        self,
        fn: Callable[..., None],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        **_: Any,
    ) -> Any:
        if interposer.current() is not None:
            raise CourseError(
                'a rank would start ranks. Begin the lines that start them with `if __name__ == "__main__":`, because '
                "each spawned rank executes the file, too."
            )
        try:
            self._launch([(fn, tuple(args), {})], nprocs, start_method, numbered=True)
        except RankError as error:
            if error.kind != "raised":
                raise
            raise _RankRaised.of(error) from None
        return None if join else SimpleNamespace(processes=(), join=lambda *args, **kwargs: True)


class _RankRaised(RankError, mp.ProcessRaisedException):
    """The failure of a rank that `mp.spawn` has started. A program may catch it as torch's."""

    @classmethod
    def of(cls, error: RankError) -> _RankRaised:
        raised = cls.__new__(cls, *error.args)
        vars(raised).update(vars(error))
        raised.error_index = error.rank
        return raised


_RankRaised.__name__ = RankError.__name__  # which a notebook shows


class _Waiting:
    """The state that `multiprocessing` keeps of a process: it runs, with all others, when the program waits for it."""

    pid, returncode = None, 0
    sentinel = None

    def __init__(self, launcher: _Launcher) -> None:
        self._launcher = launcher

    def wait(self, timeout: float | None = None) -> int:
        self._launcher.run_started()
        return 0

    def poll(self) -> int:
        return self.wait()

    def close(self) -> None: ...

    terminate = kill = close


@contextmanager
def _own_start_method() -> Iterator[None]:
    """Let the program choose a start method inside the block, as in a new process."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)
