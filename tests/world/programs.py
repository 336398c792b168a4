"""What the tests of several kinds of worlds run on ranks, and how they look at a run that fails."""

import importlib
import os
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, World, mark


def rank() -> int:
    return dist.get_rank()


def imported(module: str) -> None:
    importlib.import_module(module)


def total() -> float:
    """The number of ranks, if all of them come."""
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def train(stage) -> list[list[float]]:
    """Two steps of an engine, with other data on each rank: the values of its model."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3))
    engine = stage(model, torch.optim.Adam, lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(2):
        engine(torch.randn(8, 30, generator=generator)).square().mean().backward()
        mark("after backward")
        engine.step()
        engine.zero_grad()
    return [value.tolist() for value in engine.state_dict().values()]


def come_to_their_waits() -> None:
    """Give ranks that are about to wait the time to do so: 0.2 s, and longer on a busy machine."""
    time.sleep(0.2 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def slow_package(path: Path, seconds: float) -> Path:
    """A package whose first import takes so long, and which Python cannot import any more if it is stopped then.

    Returns:
        Where a file is as soon as the import is under way.
    """
    path.mkdir()
    begun = path / "begun"
    (path / "part.py").write_text("VALUE = 3\n")
    (path / "__init__.py").write_text(
        f"import pathlib, time, {path.name}.part\n"
        f"begun = pathlib.Path({str(begun)!r})\n"
        f"if not begun.exists():\n    begun.touch()\n    time.sleep({seconds})\n"
    )
    return begun


def failure(world: World, fn) -> RankError:
    """The error of a run that must fail soon, and leave the world usable. How soon is measured by `make bench`; here a
    machine may be busy, and what waits for a watchdog would wait for the time limit."""
    limit, world.timeout = world.timeout, 60.0
    world.run(imported, fn.__module__)  # a rank that is still importing is reported as such
    started, world.timeout = time.monotonic(), limit
    with pytest.raises(RankError) as caught:
        world.run(fn)
    took = time.monotonic() - started
    assert caught.value.kind == "timeout" or took < world.timeout / 2, f"took {took:.1f} s"
    world.timeout = 60.0
    assert list(world.run(total)) == [float(world.world_size)] * world.world_size
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]
    world.timeout = limit
    return caught.value


def lines(error: RankError) -> list[str]:
    """The message, line by line."""
    return str(error).splitlines()
