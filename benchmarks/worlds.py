"""How long it takes to have ranks: worlds beside `torch.multiprocessing.spawn` doing the same."""

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ipyparallel
import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from course_lib import RankError, World
from course_lib.world.processes.pool import pool

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


@contextlib.contextmanager
def engines() -> Iterator[list[Any]]:
    """Four engines of ipyparallel in one default group: what calls a function on each."""
    with ipyparallel.Cluster(n=4, log_level=logging.ERROR) as client, tempfile.TemporaryDirectory() as folder:
        file = f"file://{Path(folder) / 'rendezvous'}"
        joining = [
            engine.apply_async(dist.init_process_group, "gloo", init_method=file, rank=rank, world_size=4)
            for rank, engine in enumerate(client)
        ]
        for one in joining:
            one.get(60)
        yield list(client)


def run_on(ranks: list[Any]) -> None:
    """What a world's run does, on engines of ipyparallel."""
    sums = [rank.apply_async(all_reduce) for rank in ranks]
    assert [one.get(60) for one in sums] == [len(ranks)] * len(ranks)


def run(world: World) -> None:
    """One run, its results checked."""
    assert list(world.run(all_reduce)) == [world.world_size] * world.world_size


def fail(world: World) -> None:
    """One run that fails: a rank raises while its peers wait for it."""

    def program() -> None:
        if dist.get_rank() == 1:
            raise ValueError("on purpose")
        all_reduce()

    with contextlib.suppress(RankError):
        world.run(program)


def die(world: World) -> None:
    """One run that fails: a rank's process is killed while its peers wait for it."""

    def program() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        all_reduce()

    with contextlib.suppress(RankError):
        world.run(program)


def megabytes_of(processes: Iterable[psutil.Process]) -> float:
    """What processes take from the machine; pages that several share count once."""
    return float(sum(one.memory_full_info().pss for one in processes)) / 1e6


def rows() -> Iterator[Row]:
    """The rows of this benchmark."""
    name = "torch.multiprocessing.spawn, 4 ranks"
    peer = median_seconds(lambda: spawned(4), 3)
    yield from _simulated(peer, name)
    yield from _processes(peer, name)


def _processes(peer: float, name: str) -> Iterator[Row]:
    cold = seconds(lambda: run(World(4, backend="processes")))
    world = World(4, backend="processes")
    warm = median_seconds(lambda: run(world), 20)
    server = psutil.Process(psutil.Process(pool.processes[0].process.pid).ppid())
    megabytes = megabytes_of([server, *server.children()])
    failing = median_seconds(lambda: fail(world), 5)
    dying = median_seconds(lambda: die(world), 5)
    what = "World(4, backend='processes')"
    yield Row(what=f"{what}, first run of the kernel", ours=cold, peer=peer, peer_name=name, most=2.5)
    yield Row(what=f"{what}, next run", ours=warm, peer=peer, peer_name=name, most=0.03)
    yield Row(what=f"{what}, memory", ours=megabytes, unit="MB", most=600)
    yield Row(what=f"{what}, a rank's failure, told", ours=failing, most=2)
    yield Row(what=f"{what}, a rank's death, told", ours=dying, most=2)
    name = "ipyparallel, 4 engines"
    with contextlib.ExitStack() as stack:
        ranks: list[Any] = []

        def first_run() -> None:
            ranks.extend(stack.enter_context(engines()))
            run_on(ranks)

        peer = seconds(first_run)
        yield Row(what=f"{what}, first run of the kernel", ours=cold, peer=peer, peer_name=name)
        peer = median_seconds(lambda: run_on(ranks), 20)
        yield Row(what=f"{what}, next run", ours=warm, peer=peer, peer_name=name)
        peer = megabytes_of([psutil.Process(pid) for pid in [rank.apply_sync(os.getpid) for rank in ranks]])
        yield Row(what=f"{what}, memory", ours=megabytes, peer=peer, peer_name=name, unit="MB")


def _simulated(peer: float, name: str) -> Iterator[Row]:
    world = World(4, backend="simulated")
    cold = seconds(lambda: run(world))  # the first run in this kernel
    warm = median_seconds(lambda: run(world), 20)
    many = median_seconds(lambda: run(World(64, backend="simulated")), 3)
    failing = median_seconds(lambda: fail(world), 5)
    first = "World(4), first run of the kernel"
    yield Row(what=first, ours=cold, peer=peer, peer_name=name, most=0.06)
    yield Row(what="World(4), next run", ours=warm, peer=peer, peer_name=name, most=0.01, most_of_peer=1 / 50)
    yield Row(what="World(64), one run", ours=many, most=1.5)
    yield Row(what="World(4), a rank's failure, told", ours=failing, most=1)
