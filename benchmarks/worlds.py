"""How long it takes to have ranks: simulated worlds beside `torch.multiprocessing.spawn` doing the same."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from course_lib import RankError, World

from .measure import Row, median_seconds, seconds


def all_reduce() -> float:
    """One small all-reduce; the sum of the ranks' ones."""
    x = torch.ones(4)
    dist.all_reduce(x)
    return x[0].item()


def _process(rank: int, world_size: int, rendezvous: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    assert all_reduce() == world_size
    dist.destroy_process_group()


def spawned(world_size: int) -> None:
    """What a world does, with a new process for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, args=(world_size, str(Path(folder) / "rendezvous")), nprocs=world_size)


def run(world: World) -> None:
    """One run of a simulated world, its results checked."""
    assert list(world.run(all_reduce)) == [world.world_size] * world.world_size


def fail(world: World) -> None:
    """One run that fails: a rank raises while its peers wait for it."""

    def program() -> None:
        if dist.get_rank() == 1:
            raise ValueError("on purpose")
        all_reduce()

    with contextlib.suppress(RankError):
        world.run(program)


def rows() -> Iterator[Row]:
    """The rows of this benchmark."""
    world = World(4)
    cold = seconds(lambda: run(world))  # the first run in this kernel
    warm = median_seconds(lambda: run(world), 20)
    many = median_seconds(lambda: run(World(64)), 3)
    failing = median_seconds(lambda: fail(world), 5)
    peer = median_seconds(lambda: spawned(4), 3)
    name = "torch.multiprocessing.spawn, 4 ranks"
    first = "World(4), first run of the kernel"
    yield Row(what=first, ours=cold, peer=peer, peer_name=name, goal="≤ 0.060 s", met=cold <= 0.06)
    yield Row(
        what="World(4), next run",
        ours=warm,
        peer=peer,
        peer_name=name,
        goal="≤ 0.010 s and 50 times faster",
        met=warm <= 0.01 and peer / warm >= 50,
    )
    yield Row(what="World(64), one run", ours=many, goal="≤ 1.5 s", met=many <= 1.5)
    yield Row(what="World(4), a rank's failure, told", ours=failing, goal="≤ 1 s", met=failing <= 1)
