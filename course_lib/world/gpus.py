"""Which GPU each rank works on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..errors import CourseError
from .processes import Processes


def on_gpus(world_size: int, *, gpus: int | None, share_gpu: bool) -> Processes:
    """A world of processes with a GPU each and NCCL; or, where there are fewer GPUs and ranks may share them, with
    gloo, which takes tensors on GPUs too: NCCL wants a GPU for every rank.

    Args:
        world_size: how many ranks.
        gpus: how many GPUs there are to use; None for all of the machine's.
        share_gpu: ranks may share them.

    Raises:
        CourseError: there is no GPU, or there are too few.
    """
    found = torch.cuda.device_count()
    there = found if gpus is None else min(found, gpus)
    if not there:
        raise CourseError(
            "World(backend='nccl'): torch sees no GPU on this machine (`course doctor` tells why). For ranks on the "
            "CPU, say backend='processes', or leave the argument out for simulated ranks."
        )
    nccl = world_size <= there and dist.is_nccl_available()
    if not nccl and not share_gpu:
        if world_size <= there:
            raise CourseError(
                f"World(backend='nccl'): this build of torch ({torch.__version__}) has no NCCL. Install torch's CUDA "
                "build for Linux, or say share_gpu=True: then gloo takes its place, which is slower."
            )
        limit = f", {there} of them to be used" if there < found else ""
        raise CourseError(
            f"World({world_size}, backend='nccl'): NCCL wants a GPU for every rank; this machine has {found}{limit}. "
            f"Take fewer ranks, World({there}, backend='nccl'); or let ranks share GPUs, with share_gpu=True: then "
            "gloo takes the place of NCCL, which is slower."
        )
    return Processes(world_size, devices=tuple(rank % there for rank in range(world_size)), nccl=nccl)
