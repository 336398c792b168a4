"""The machines of a world, and the place of each rank on them."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from ...errors import CourseError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine that runs ranks."""

    name: str  # its `$COURSE_HOST`, or its host name
    hostname: str
    address: str  # where other machines reach it; the loopback if there are none
    interface: str  # the network interface with that address
    gpus: int
    threads: int
    versions: tuple[str, str]  # of Python and torch; equal everywhere, because functions travel as bytecode

    @classmethod
    def here(cls, address: str) -> Machine:
        names = [name for name, own in psutil.net_if_addrs().items() if address in {one.address for one in own}]
        if not names:
            raise ValueError(f"{socket.gethostname()} has no network interface with the address {address}")
        return cls(
            name=machine_name(),
            hostname=socket.gethostname(),
            address=address,
            interface=names[0],
            gpus=torch.cuda.device_count(),
            threads=torch.get_num_threads(),
            versions=(".".join(platform.python_version_tuple()[:2]), torch.__version__.split("+")[0]),
        )


def machine_name() -> str:
    return os.environ.get("COURSE_HOST") or socket.gethostname()


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a rank, in torchrun's terms."""

    machine: str
    node: int  # the machine's number in the world
    nodes: int  # the number of machines in the world
    local_rank: int  # the rank's number on its machine
    local_world_size: int  # the number of ranks on its machine
    device: int | None

    @property
    def seat(self) -> tuple[str, int]:
        return self.machine, self.local_rank

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables that torchrun would set for the rank."""
        return {
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(self.nodes),
        }


def evenly(world_size: int, machines: Sequence[Machine], *, limit: int | None = 0) -> list[Place]:
    """Place ranks in blocks, as evenly as possible: the first machines may have one more. The ranks of a machine share
    at most `limit` of its GPUs; 0 means CPUs."""
    each, more = divmod(world_size, len(machines))
    return _in_blocks(machines, [each + (part < more) for part in range(len(machines))], usable(machines, limit))


def a_gpu_each(world_size: int, machines: Sequence[Machine], *, limit: int | None) -> list[Place]:
    """Place each rank on a GPU of its own; fill the first machine first. Raise a CourseError if there are too few."""
    gpus, counts, left = usable(machines, limit), [], world_size
    for number in gpus:
        counts.append(min(left, number))
        left -= counts[-1]
    if left:
        raise CourseError(
            f"World({world_size}, backend='nccl'): NCCL wants a GPU for every rank, and {sum(gpus)} can be used here. "
            f"Take fewer ranks, World({sum(gpus)}, backend='nccl'); or let ranks share GPUs, with share_gpu=True: then "
            "gloo takes the place of NCCL, which is slower."
        )
    return _in_blocks(machines, counts, gpus)


def usable(machines: Sequence[Machine], limit: int | None) -> list[int]:
    """Return the number of GPUs that ranks may use on each machine."""
    return [machine.gpus if limit is None else min(machine.gpus, limit) for machine in machines]


def _in_blocks(machines: Sequence[Machine], counts: Sequence[int], gpus: Sequence[int]) -> list[Place]:
    used = [index for index, count in enumerate(counts) if count]
    return [
        Place(
            machine=machines[index].name,
            node=node,
            nodes=len(used),
            local_rank=local_rank,
            local_world_size=counts[index],
            device=local_rank % gpus[index] if gpus[index] else None,
        )
        for node, index in enumerate(used)
        for local_rank in range(counts[index])
    ]
