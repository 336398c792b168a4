"""Worlds whose ranks work on GPUs."""

from __future__ import annotations

from functools import partial

import torch

from ...errors import CourseError
from .backend import Processes
from .placement import a_gpu_each, sharing, usable
from .pool import Pool


def on_gpus(world_size: int, *, pool: Pool, gpus: int | None, share_gpu: bool) -> Processes:
    """A world of processes with a GPU each and NCCL; or, where there are fewer GPUs and ranks may share them, with
    gloo, which takes tensors on GPUs too: NCCL wants a GPU for every rank.

    Args:
        world_size: how many ranks.
        pool: whose processes.
        gpus: how many GPUs of a machine there are to use; None for all.
        share_gpu: ranks may share them.

    Raises:
        CourseError: there is no GPU, or there are too few.
    """
    pool.start()
    machines = pool.source.machines
    there = usable(machines, gpus)
    where = "this machine" if len(machines) == 1 else " or ".join(machine.name for machine in machines)
    if not all(there):
        raise CourseError(
            f"World(backend='nccl'): torch sees no GPU on {where} (`course doctor` tells why). For ranks on the "
            "CPU, say backend='processes', or leave the argument out for simulated ranks."
        )
    nccl = world_size <= sum(there) and all(machine.nccl for machine in machines)
    if not nccl and not share_gpu:
        a_gpu_each(world_size, machines, limit=gpus)  # where there are too few, it says so
        raise CourseError(
            f"World(backend='nccl'): this build of torch ({torch.__version__}) has no NCCL. Install torch's CUDA "
            "build for Linux, or say share_gpu=True: then gloo takes its place, which is slower."
        )
    return Processes(world_size, pool=pool, placing=partial(a_gpu_each if nccl else sharing, limit=gpus), nccl=nccl)
