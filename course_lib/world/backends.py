"""The table of backends, by name. A backend's module is imported when a world first uses that backend."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import CourseError
from .run import Outcome, Run

if TYPE_CHECKING:
    from .processes.pool import Pool


class Backend(Protocol):
    """The place where the ranks of one world live."""

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        timeout: float,
        size_of: Callable[[int], int] | None,
    ) -> Outcome:
        """Call `fn(*args, **kwargs)` on every rank at once.

        Args:
            fn, args, kwargs: what each rank calls.
            timeout: seconds after which ranks are stopped.
            size_of: how memory is counted: maps the bytes that a tensor needs to the bytes that the allocator gives.
                None: memory is not measured. It must be a function of a module, because other processes look it up by
                name.

        Raises:
            RankError: a rank failed, or the run took longer than `timeout` seconds.
            KeyboardInterrupt: the run was interrupted.
        """


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The arguments of a world, as they were passed.

    Attributes:
        world_size: number of ranks. The backend checks it.
        rank: for a dry run, the rank that runs; None if the argument was left out.
        share_gpu: for NCCL, several ranks may share a GPU.
        gpus: the most GPUs of a machine to use; None for all of them.
        cluster: an `ipyparallel.Client` of the machines to run on; None for this machine.
    """

    world_size: int
    rank: int | None = None
    share_gpu: bool = False
    gpus: int | None = None
    cluster: Any = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the table.

    Attributes:
        make: returns a backend; raises a CourseError if the choice is impossible.
        streams: the backend shows output while ranks run. If not, the world shows it after the run.
        run_class: makes the `Run` from the outcome.
    """

    make: Callable[[Choice], Backend]
    streams: bool = False
    run_class: Callable[[Any], Run] = Run


def _simulated(choice: Choice) -> Backend:
    from .simulated.backend import Simulated

    return Simulated(choice.world_size)


def _dryrun(choice: Choice) -> Backend:
    from .dryrun.backend import DryRun

    return DryRun(choice.world_size, 0 if choice.rank is None else choice.rank)


def _one_rank(outcome: Any) -> Run:
    from .dryrun.run import DryRunResult

    return DryRunResult(outcome)


def _processes(choice: Choice) -> Backend:
    from .processes.backend import Processes

    return Processes(choice.world_size, pool=_pool(choice))


def _nccl(choice: Choice) -> Backend:
    from .processes.gpus import on_gpus

    return on_gpus(choice.world_size, pool=_pool(choice), gpus=choice.gpus, share_gpu=choice.share_gpu)


def _pool(choice: Choice) -> Pool:
    if choice.cluster is not None:
        from .cluster.backend import pool_of

        return pool_of(choice.cluster)
    if not hasattr(os, "fork"):
        raise CourseError(
            f"World(backend='processes'): {sys.platform} cannot fork processes, as Linux and macOS do. "
            "Leave the argument out for simulated ranks, which run everywhere."
        )
    from .processes.pool import pool

    return pool


BACKENDS = {
    "simulated": Entry(make=_simulated),
    "processes": Entry(make=_processes, streams=True),
    "nccl": Entry(make=_nccl, streams=True),
    "dryrun": Entry(make=_dryrun, streams=True, run_class=_one_rank),
}


def chosen(
    world_size: int, *, backend: str | None, rank: int | None, share_gpu: bool, cluster: Any
) -> tuple[str, Entry, Backend]:
    """Return the chosen backend's name, its entry and the backend.

    Raises:
        CourseError: the backend does not exist, or cannot run with these arguments.
    """
    asked = backend if backend is not None else os.environ.get("COURSE_WORLD") or "simulated"
    matched = re.fullmatch(r"([a-z]+)(?::([1-9][0-9]*))?", asked) if isinstance(asked, str) else None
    name, gpus = (matched[1], matched[2]) if matched else ("", None)
    if name not in BACKENDS or (gpus and name != "nccl"):
        raise CourseError(
            f"World(backend={asked!r}): there is no such backend here; there is {', '.join(BACKENDS)}, and nccl:8 for "
            "8 GPUs. Leave the argument out, and unset $COURSE_WORLD, for simulated ranks."
        )
    if rank is not None and name != "dryrun":
        raise CourseError(
            f"World(rank={rank!r}): only a dry run shows one rank out of many; the backend here is {name!r}, where all "
            "of them run. Leave rank= out, or say backend='dryrun'."
        )
    if share_gpu and name != "nccl":
        raise CourseError(
            f"World(share_gpu={share_gpu!r}): only the backend 'nccl' has GPUs to share; the backend here is {name!r}. "
            "Leave share_gpu= out, or say backend='nccl'."
        )
    if cluster is not None and name not in ("processes", "nccl"):
        raise CourseError(
            f"World(cluster=...): only processes can be on several machines; the backend here is {name!r}. Leave "
            "cluster= out, or say backend='nccl', or backend='processes' for CPUs."
        )
    entry = BACKENDS[name]
    choice = Choice(
        world_size=world_size,
        rank=rank,
        share_gpu=bool(share_gpu),
        gpus=int(gpus) if gpus is not None else None,
        cluster=cluster,
    )
    return name, entry, entry.make(choice)
