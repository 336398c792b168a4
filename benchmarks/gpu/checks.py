"""The shorter steps: tests that need a GPU, the recipe, messages of failures, a program, and links between GPUs."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import torch
import torch.distributed as dist

from course_lib import RankError, World, planner
from course_lib.commands.recipe import MARKS, PUBLISHED_MB, train

from .figures import GPU, Figure, Jobs, on_the_gpu, step_seconds

ROOT = Path(__file__).parents[2]


def tests(out: Path) -> Jobs:
    yield "tests/gpu", partial(outcomes, out / "tests.xml")


def outcomes(report: Path) -> Iterator[Figure]:
    """The outcome of each test in tests/gpu."""
    options = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(ROOT), f"--junitxml={report}"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # a machine's own plugins may need Jupyter
    subprocess.run([sys.executable, "-m", "pytest", *options, str(ROOT / "tests/gpu")], env=environment, check=False)
    for case in ElementTree.parse(report).iter("testcase"):
        ends = {end.tag: end.get("message", "") for end in case}
        value = None if "skipped" in ends else ", ".join([*ends.values()]) or "passed"
        yield Figure(what=case.attrib["name"], value=value, absent=ends.get("skipped", ""))


def recipe(out: Path) -> Jobs:
    """torch's recipe for ZeroRedundancyOptimizer: its table, on the card and, in a rehearsal, on pretended GPUs."""
    for sharded, foreach in product((True, False), (False, True)):
        what = f"recipe, {'sharded' if sharded else 'not sharded'}, foreach={foreach}"
        yield what, partial(recipe_table, what, sharded, foreach)


pretended = recipe  # the kit hides the GPU from this step


def recipe_table(what: str, sharded: bool, foreach: bool) -> Iterator[Figure]:
    world = on_the_gpu(2, allocator="cuda") if GPU else World(2, backend="processes", gpus=True)
    marks = world.run(recipe_on_gpu, sharded, foreach).memory[0].marks
    for label, published in zip(MARKS, PUBLISHED_MB[sharded], strict=True):
        at, cuda = marks[label], marks[label].cuda
        beside = {"meter" if GPU else "pretended GPU": at.peak_bytes / 1e6, "published": published}
        value = cuda.max_allocated_bytes / 1e6 if cuda else None
        yield Figure(what=f"{what}, most until {label}", value=value, unit="MB", beside=beside)


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
    """The message of each way to fail."""
    for ranks, what in product((1, 2), WAYS):
        yield what, partial(message, f"{what}, ranks: {ranks}", ranks, WAYS[what])


def message(what: str, ranks: int, way: Callable[[], object]) -> Iterator[Figure]:
    try:
        on_the_gpu(ranks).run(way)
    except RankError as error:
        yield Figure(what=what, value=str(error))
    else:
        yield Figure(what=what, value="nothing was raised")


def program(out: Path) -> Jobs:
    world = "nccl:1" if GPU else "processes"
    yield "program", partial(printed, f"course run --world {world} --ranks 1 -m course_lib.production.train")


def printed(command: str) -> Iterator[Figure]:
    """What `course run` prints of a training program."""
    with TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", "course_lib.commands.cli", *command.split()[1:], folder]
        done = subprocess.run(arguments, capture_output=True, text=True)
    yield Figure(what=command, value=f"{done.stdout}{done.stderr}exit code {done.returncode}")


def links(out: Path) -> Jobs:
    """The bandwidth of an all-reduce between this machine's GPUs; without GPUs, between two processes."""
    if torch.cuda.device_count() < 2:
        yield "NCCL", lambda: [Figure(what="bus bandwidth with NCCL", absent="needs two GPUs")]
    if torch.cuda.device_count() != 1:
        yield "links", bandwidth


def bandwidth() -> Iterator[Figure]:
    world = World(torch.cuda.device_count() or 2, backend="nccl" if GPU else "processes", measure=False)
    for nbytes in (2**20, 2**28 if GPU else 2**22):
        seconds = world.run(all_reduce_seconds, nbytes)[0]
        rate = planner.bus_bandwidth("all_reduce", nbytes, seconds, world.world_size) / 1e9
        yield Figure(what=f"bus bandwidth, {world}, {nbytes / 1e6:.0f} MB", value=rate, unit="GB/s")


def all_reduce_seconds(nbytes: int) -> float:
    x = torch.ones(nbytes // 4)
    return step_seconds(lambda: dist.all_reduce(x))
