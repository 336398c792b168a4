"""The shorter steps: tests that need a GPU, the recipe, messages of failures, a program, and links between GPUs."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib import RankError, World, planner
from course_lib.commands.recipe import MARKS, PUBLISHED_MB, train

from .figures import GPU, Figure, Jobs, megabytes, on_the_gpu, step_seconds

ROOT = Path(__file__).parents[2]


def tests(out: Path) -> Jobs:
    options = f"-v -rs --tb short --disable-warnings -p no:cacheprovider -c {os.devnull} --confcutdir {ROOT}"
    return {"tests/gpu": partial(printed, "pytest", *options.split(), str(ROOT / "tests/gpu"))}


def program(out: Path) -> Jobs:
    """A training program under `course run`, which takes minutes without a GPU."""
    command = f"course_lib.commands.cli run --world nccl:1 --ranks 1 -m course_lib.production.train {out / 'training'}"
    return {"course run": partial(printed, *command.split()) if GPU else lambda: [Figure(what="output")]}


def printed(*command: str, **environment: str) -> Iterator[Figure]:
    environ = os.environ | environment
    done = subprocess.run([sys.executable, "-m", *command], env=environ, capture_output=True, text=True, timeout=120)
    yield Figure(what="output", value=f"{done.stdout}{done.stderr}exit code {done.returncode}")


def recipe(out: Path) -> Jobs:
    """torch's recipe for ZeroRedundancyOptimizer: its table, on the card or, without one, on pretended GPUs."""
    return {
        f"{'sharded' if sharded else 'not sharded'}, foreach={foreach}": partial(recipe_table, sharded, foreach)
        for sharded, foreach in product((True, False), (False, True))
    }


def pretended(out: Path) -> Jobs:
    """The recipe again, with the card hidden."""
    again = partial(printed, "benchmarks.gpu", str(out / "pretended"), "--only", "recipe", CUDA_VISIBLE_DEVICES="")
    return {"recipe": again} if GPU else {}


def recipe_table(sharded: bool, foreach: bool) -> Iterator[Figure]:
    world = on_the_gpu(2, allocator="cuda") if GPU else World(2, gpus=True, timeout=120)
    marks = world.run(recipe_on_gpu, sharded, foreach).memory[0].marks
    meter = "meter" if GPU else "pretended GPU"
    for label, published in zip(MARKS, PUBLISHED_MB[sharded], strict=True):
        at, cuda = marks[label], marks[label].cuda
        most = cuda.max_allocated_bytes if cuda else None
        yield megabytes(f"most until {label}", most, **{meter: at.peak_bytes, "published": published * 1e6})


def recipe_on_gpu(sharded: bool, foreach: bool) -> None:
    with torch.device("cuda"):
        train(sharded, foreach)


WAYS: dict[str, Callable[[], object]] = {
    "a wrong size": lambda: dist.reduce_scatter_single(torch.ones(3), torch.ones(4)),
    "a tensor of the host": lambda: dist.all_reduce(torch.ones(4, device="cpu")),
    "out of memory": lambda: torch.empty(1 << 50, dtype=torch.uint8),
    "rank 0 is killed": lambda: os.kill(os.getpid(), 9) if dist.get_rank() == 0 else dist.barrier(),
    "different shapes": lambda: dist.all_reduce(torch.ones(2 + dist.get_rank())),
}


def failures(out: Path) -> Jobs:
    return {f"{way}, ranks: {ranks}": partial(message, ranks, WAYS[way]) for ranks, way in product((1, 2), WAYS)}


def message(ranks: int, way: Callable[[], object]) -> Iterator[Figure]:
    try:
        on_the_gpu(ranks).run(way)
    except RankError as error:
        yield Figure(what="message", value=str(error))
    else:
        yield Figure(what="message", value="nothing was raised")


def links(out: Path) -> Jobs:
    return {"all-reduce": bandwidth}


def bandwidth() -> Iterator[Figure]:
    """The bandwidth between this machine's GPUs; without GPUs, between two processes."""
    gpus = torch.cuda.device_count()
    if gpus < 2:
        yield Figure(what="bus bandwidth with NCCL", absent="needs two GPUs")
    if gpus == 1:
        return
    world = World(gpus or 2, backend="nccl" if gpus else "processes", measure=False)
    for nbytes in (2**20, 2**28 if gpus else 2**22):
        seconds = world.run(all_reduce_seconds, nbytes)[0]
        rate = planner.bus_bandwidth("all_reduce", nbytes, seconds, world.world_size) / 1e9
        yield Figure(what=f"bus bandwidth, {world}, {nbytes / 1e6:.0f} MB", value=rate, unit="GB/s")


def all_reduce_seconds(nbytes: int) -> float:
    x = torch.ones(nbytes // 4)
    return step_seconds(lambda: dist.all_reduce(x))
