"""The table of backends: what makes one, by name. Each is imported when a world first asks for it."""

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
    """Where the ranks of one world live."""

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
            size_of: how memory is counted: how many bytes the allocator gives for how many that are asked for. If
                None, it is not measured. A function of a module, so that it reaches other processes by its name.

        Raises:
            RankError: a rank failed, or the time limit of `timeout` seconds passed.
            KeyboardInterrupt: the run was interrupted.
        """


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a world was asked to be.

    Attributes:
        world_size: how many ranks, as it was given; whether so many can be is for the backend to say.
        rank: for a dry run, the rank that is shown; None where it was left out.
        share_gpu: for NCCL, several ranks may share a GPU.
        gpus: how many GPUs of a machine there are to use; None for all of them.
        cluster: an `ipyparallel.Client` of the machines that ranks are to be on; None for this one.
    """

    world_size: int
    rank: int | None = None
    share_gpu: bool = False
    gpus: int | None = None
    cluster: Any = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A backend of the table.

    Attributes:
        make: makes one. Raises a CourseError if the choice cannot be had.
        streams: it shows by itself what ranks print, while they run; of others, the world shows it at the end.
        told: what is told of its outcome.
    """

    make: Callable[[Choice], Backend]
    streams: bool = False
    told: Callable[[Any], Run] = Run


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
        from .cluster.backend import clusters

        return clusters.pool(choice.cluster)
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
    "dryrun": Entry(make=_dryrun, streams=True, told=_one_rank),
}


def chosen(
    world_size: int, *, backend: str | None, rank: int | None, share_gpu: bool, cluster: Any
) -> tuple[str, Entry, Backend]:
    """The backend that the arguments of `World` and `$COURSE_WORLD` ask for: its name, its entry, and one of it.

    Raises:
        CourseError: there is no such backend, or it cannot be had like this.
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
