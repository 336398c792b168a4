"""Worlds whose ranks use GPUs."""

from __future__ import annotations

from functools import partial

import torch

from ...errors import CourseError
from .backend import Processes
from .placement import a_gpu_each, sharing, usable
from .pool import Pool


def on_gpus(world_size: int, *, pool: Pool, gpus: int | None, share_gpu: bool) -> Processes:
    """Return a world of processes on GPUs: with NCCL and one GPU each, or with gloo if ranks must share GPUs.

    gloo also accepts tensors on GPUs; NCCL needs a GPU for every rank.

    Args:
        world_size: number of ranks.
        pool: the pool that provides the processes.
        gpus: the most GPUs of a machine to use; None for all.
        share_gpu: ranks may share GPUs.

    Raises:
        CourseError: there is no GPU, or there are too few.
    """
    pool.start()
    machines = pool.source.machines
    gpu_counts = usable(machines, gpus)
    where = "this machine" if len(machines) == 1 else " or ".join(machine.name for machine in machines)
    if not all(gpu_counts):
        raise CourseError(
            f"World(backend='nccl'): torch sees no GPU on {where} (`course doctor` tells why). For ranks on the "
            "CPU, say backend='processes', or leave the argument out for simulated ranks."
        )
    nccl = world_size <= sum(gpu_counts) and all(machine.nccl for machine in machines)
    if not nccl and not share_gpu:
        a_gpu_each(world_size, machines, limit=gpus)  # raises if there are too few
        raise CourseError(
            f"World(backend='nccl'): this build of torch ({torch.__version__}) has no NCCL. Install torch's CUDA "
            "build for Linux, or say share_gpu=True: then gloo takes its place, which is slower."
        )
    return Processes(world_size, pool=pool, placing=partial(a_gpu_each if nccl else sharing, limit=gpus), nccl=nccl)
