"""`World`: run the same function on every rank."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from datetime import datetime
from typing import Any

from ..errors import CourseError, CourseWarning
from ..meter import ALLOCATORS, gpu_bytes, is_learners
from .backends import chosen
from .errors.rank_error import RankError
from .errors.reported import About
from .pickling.calls import check_call, pack_call
from .program import Program, launch, main_of_ranks
from .rank_threads.interrupts import put_off
from .rank_threads.printing import FoldedLines, Lines
from .run import Order, Run
from .torch_hooks import interposer
from .torch_hooks.gpus import pretended

PRETENDED = "The GPUs are pretended: only memory that the program puts on them is counted, and times are not a GPU's."


class World:
    """A number of ranks that run the same function.

    Args:
        world_size: number of ranks.
        backend: where the ranks live. `"simulated"`: 1 to 64 threads of this process, with real gloo between them.
            `"processes"`: one process each, with gloo. `"nccl"`: one process and one GPU each, with NCCL; `"nccl:8"`
            uses at most 8 GPUs. `"dryrun"`: only one rank runs, with tensors that have a size and no content. The
            default is `$COURSE_WORLD`, or `"simulated"` if that is not set. Without a seed of the program's, torch
            draws the same numbers on every simulated rank, and different ones on each process; each run repeats them.
        timeout: seconds after which a run is stopped.
        measure: whether to measure the memory of each rank: a run's `memory`.
        replay: whether to keep the values of small tensors before and after each call, and loop counters, which
            `run.replay()` then shows, and checksums of all tensors, which `run.layout()` compares.
        strict: whether to look for lines that use the tensors of an asynchronous call before its wait, which the run
            then warns of. Each operator takes some microseconds more.
        allocator: how bytes are counted. By default, the bytes that a tensor needs; with `"cuda"`, the bytes that
            CUDA's caching allocator would give it.
        gpus: whether to pretend that each rank has a GPU, on a machine that has none. What the program puts on "cuda"
            stays on the CPU, and a run's `memory` counts only that, as CUDA's allocator would. The GPU has 80 GB, or
            the bytes that you pass: `gpus=24e9`. Beyond them, the rank raises `torch.OutOfMemoryError`.
        rank: for a dry run, the rank that runs; by default 0.
        share_gpu: with `"nccl"`, ranks may share GPUs if there are too few. gloo then replaces NCCL.
        cluster: with `"processes"` and `"nccl"`, an `ipyparallel.Client` of the machines to run on, with an engine on
            each. Ranks are placed in blocks, in the order of the machines' names: with `"nccl"` one rank for each GPU
            of a machine, with `"processes"` the same number on each. By default all ranks are on this machine.

    Raises:
        CourseError: an argument is invalid.

    Example:
        >>> World(4).run(lambda: dist.get_rank() ** 2)[3]
        9
    """

    def __init__(
        self,
        world_size: int,
        *,
        backend: str | None = None,
        timeout: float = 60.0,
        measure: bool = True,
        replay: bool = False,
        strict: bool = False,
        allocator: str | None = None,
        gpus: bool | float = False,
        rank: int | None = None,
        share_gpu: bool = False,
        cluster: Any = None,
    ) -> None:
        if isinstance(world_size, bool) or not hasattr(world_size, "__index__"):
            raise CourseError(
                f"World({world_size!r}): the number of ranks must be a whole number, "
                f"not a {type(world_size).__name__}. For example World(4)."
            )
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= sys.float_info.max:
            raise CourseError(
                f"World(timeout={timeout!r}): the time limit is a number of seconds above 0. For example timeout=60."
            )
        if allocator not in ALLOCATORS:
            raise CourseError(
                f"World(allocator={allocator!r}): there is no such allocator here; there is 'cuda', which counts bytes "
                "as a GPU's would. Leave the argument out for the bytes that tensors need."
            )
        self.gpus = gpu_bytes(gpus)
        if gpus not in (False, True) and not measure:
            raise CourseError(
                f"World(gpus={gpus!r}, measure=False): only measured memory can be full. Leave measure= out, or say "
                "gpus=True."
            )
        self.world_size = int(world_size)
        passed = {"rank": rank, "share_gpu": share_gpu or None, "cluster": cluster, "gpus": gpus or None}
        options = {option: value for option, value in passed.items() if value is not None}
        self._choice = backend, options
        self.backend, self._backend = chosen(self.world_size, *self._choice)
        self.timeout = float(timeout)
        self.measure = measure
        self.replay, self.strict = replay, strict
        self.allocator = "cuda" if gpus else allocator

    def __repr__(self) -> str:
        return f"World({self.world_size}, backend={self.backend!r})"

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Run:
        """Call `fn(*args, **kwargs)` on every rank at once, and wait for all.

        `torch.distributed` is ready inside `fn`: the default group holds all ranks. Every rank works on its own copy of
        `fn`, of the arguments and of the notebook's variables that it reads, as separate processes would; so return the
        results that you need. Simulated ranks share the variables of imported modules. Each printed line is shown with
        its rank: after the run, or as it comes if the run takes more than five seconds or ranks are processes.

        Returns:
            A `Run`, with what each rank returned. A run that is very likely wrong also warns: a `CourseWarning` for
            each line of `run.warnings`.

        Raises:
            RankError: a rank failed, calls of ranks did not match, or the time limit passed. Every rank is stopped.
            KeyboardInterrupt: the run was interrupted. Every rank is stopped.
            CourseError: `fn` cannot be called with these arguments.
        """
        check_call(fn, args, kwargs)
        return self._run(fn, args, kwargs, Lines(), getattr(fn, "__name__", type(fn).__name__))

    def run_file(
        self,
        path: str | os.PathLike[str],
        /,
        *arguments: str,
        module: bool = False,
        then: Callable[[Run], object] = lambda run: None,
    ) -> Run:
        """Run a program as it is, as torchrun would start it, and wait for all ranks.

        The file is `__main__` on every rank, with `arguments` as its `sys.argv`, in its own folder for imports, and
        with the environment variables that torchrun sets. The program makes the default group itself, by
        `init_process_group`. A line that several ranks print is shown once: `[ranks 0-3] text`.

        If the program starts its ranks itself, with `mp.spawn` or `Process`, it runs once, in this process. The
        processes that it starts are the ranks, as many as the program chooses.

        Args:
            path: the file, or with `module=True` the module's name, as after `python -m`.
            arguments: the program's own arguments.
            module: whether `path` is a module's name.
            then: called with each `Run`, because a program may start its ranks more than once.

        Returns:
            The `Run`; if the program starts ranks more than once, the last one. Nothing is returned on the ranks.

        Raises:
            RankError: as in `run`.
            CourseError: there is no such program, or it contains calls that start ranks and made none of them.
        """
        program = Program.found(path, arguments, module=module)
        with program.prepared():
            if program.starts_ranks:
                with pretended(self.world_size, self.gpus):  # a program may start one rank for each
                    return launch(program, lambda n, fn: self._resized(n)._run_program(fn, program.name, then))
            return self._run_program(program, program.name, then)

    def _resized(self, world_size: int) -> World:
        world = copy(self)
        world.world_size = world_size
        world.backend, world._backend = chosen(world_size, *self._choice)
        return world

    def _run_program(self, fn: Callable[[], Any], name: str, then: Callable[[Run], object]) -> Run:
        ranks = 1 if self.backend == "dryrun" else self.world_size
        with main_of_ranks():
            run = self._run(fn, (), {}, FoldedLines(ranks), name)
        then(run)
        return run

    def _about(self, name: str) -> About:
        return About(
            program=name,
            backend=self.backend,
            world_size=self.world_size,
            began=datetime.now().astimezone(),
            note=PRETENDED if self.gpus else "",
        )

    def _run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], lines: Lines, name: str
    ) -> Run:
        if (rank := interposer.current()) is not None:
            raise CourseError(
                f"rank {rank.rank} called World.run: a rank cannot start a world of its own. "
                "Call World.run in the notebook, and collectives inside the function."
            )
        about = self._about(name)
        size_of = ALLOCATORS[self.allocator] if self.measure else None
        packed = pack_call(prepared(fn, replay=self.replay, strict=self.strict), args, kwargs)
        with put_off() as late:
            order = Order(packed=packed, timeout=self.timeout, size_of=size_of, late=late, lines=lines)
            try:
                run = self._backend.run(order)
            except RankError as error:
                error.about = about
                raise
        run.about = about
        for warning in run.warnings:
            warnings.warn(warning, CourseWarning, stacklevel=_learners_level())
        return run


def _learners_level() -> int:
    """Return the `stacklevel` at which a warning names the learner's line that called the caller. A kernel forgets what
    it has shown of a cell, and shows the same text again; of a line of the course, it would not."""
    level, frame = 1, sys._getframe(1)
    while not is_learners(frame.f_code) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level


def prepared(fn: Callable[..., Any], *, replay: bool, strict: bool) -> Callable[..., Any]:
    """Return a function that calls `fn` on a rank that keeps the values of its calls, or watches their tensors."""
    if not replay and not strict:
        return fn

    @functools.wraps(fn)
    def on_rank(*args: Any, **kwargs: Any) -> Any:
        rank: Any = interposer.current()
        rank.recorder.keeps_values = replay
        with rank.watching_calls() if strict else nullcontext():
            return fn(*args, **kwargs)

    return on_rank
