"""The backends `processes` and `nccl`: processes on this machine, or on the machines of a cluster."""

import os
import sys
from functools import partial
from typing import Any

from ...errors import CourseError
from ..processes.backend import Processes
from ..processes.placement import a_gpu_each, evenly, usable
from ..processes.pool import Pool, pool


def on_cpus(world_size: int, *, cluster: Any = None, gpus: bool | float = False) -> Processes:
    """Return a world of processes that compute on CPUs, and may pretend to have GPUs."""
    return Processes(world_size, pool=_pool(cluster), gpus=gpus)


def on_gpus(world_size: int, *, cluster: Any = None, at_most: int | None = None, share_gpu: bool = False) -> Processes:
    """Return a world of processes on GPUs, at most `at_most` of a machine.

    NCCL needs a GPU for every rank. gloo also accepts tensors on GPUs, so ranks that share GPUs use it.
    """
    pool = _pool(cluster)
    pool.start()
    machines = pool.machines
    gpu_counts = usable(machines, at_most)
    where = "this machine" if len(machines) == 1 else " or ".join(machine.name for machine in machines)
    if not all(gpu_counts):
        raise CourseError(
            f"World(backend='nccl'): torch sees no GPU on {where} (`course doctor` tells why). Ranks on the CPU are "
            "'simulated' or 'processes'."
        )
    nccl = world_size <= sum(gpu_counts)
    if not share_gpu:
        a_gpu_each(world_size, machines, limit=at_most)  # raises if there are too few
    return Processes(world_size, pool=pool, placing=partial(a_gpu_each if nccl else evenly, limit=at_most), nccl=nccl)


def _pool(cluster: Any) -> Pool:
    """Return the pool that provides the processes; `cluster` is an `ipyparallel.Client`, or None for this machine."""
    if cluster is not None:
        from .backend import pool_of  # needs ipyparallel, which is not installed everywhere

        return pool_of(cluster)
    if not hasattr(os, "fork"):
        raise CourseError(
            f"World(backend='processes'): {sys.platform} cannot fork processes, as Linux and macOS do. "
            "Leave the argument out for simulated ranks, which run everywhere."
        )
    return pool
