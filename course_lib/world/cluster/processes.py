"""The backends `processes` and `nccl`: processes on this machine, or on the machines of a cluster."""

from __future__ import annotations

import os
import sys
from typing import Any

from ...errors import CourseError
from ..processes.backend import Processes
from ..processes.gpus import on_gpus as processes_on_gpus
from ..processes.pool import Pool, pool


def on_cpus(world_size: int, *, cluster: Any = None) -> Processes:
    """Return a world of processes that compute on CPUs."""
    return Processes(world_size, pool=_pool(cluster))


def on_gpus(world_size: int, *, cluster: Any = None, gpus: int | None = None, share_gpu: bool = False) -> Processes:
    """Return a world of processes on GPUs: see `processes.gpus`."""
    return processes_on_gpus(world_size, pool=_pool(cluster), gpus=gpus, share_gpu=share_gpu)


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
