"""docs/how-to/zero-3-memory.md: each number of its table is measured here."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib import World, zero

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "zero-3-memory.md"
WIDTH = 128

Made = tuple[Callable[..., Any], Any]
"""What runs the model, and what has `step` and `zero_grad`."""


def engine(engine_class: Any, **options: Any) -> Callable[[nn.Module], Made]:
    """Return a function that makes an engine; `units` is a function of the model."""

    def make(model: nn.Module) -> Made:
        chosen = {name: value(model) if callable(value) else value for name, value in options.items()}
        made = engine_class(model, torch.optim.Adam, lr=1e-3, **chosen)
        return made, made

    return make


def fsdp2(units: Callable[[nn.Module], Iterable[nn.Module]] = nn.Module.children, **options: Any) -> Any:
    def make(model: nn.Module) -> Made:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for unit in (*units(model), model):
            fully_shard(unit, mesh=mesh, **options)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    return make


def two_steps(make: Callable[[nn.Module], Made], rows: int, save: bool) -> int:
    """Train as the page says, and return the bytes of the whole model."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)))
    whole = sum(param.nbytes for param in model.parameters())
    run, optimizer = make(model)
    for _ in range(2):
        optimizer.zero_grad()
        run(torch.ones(rows, WIDTH)).square().mean().backward()
        optimizer.step()
    if save:
        run.state_dict()  # type: ignore[attr-defined]
    return whole


STAGE_3 = engine(zero.Stage3, units=list)
MEASURED: dict[str, tuple[Callable[[nn.Module], Made], bool]] = {
    "`zero.Stage2`": (engine(zero.Stage2), False),
    "`zero.Stage3`, each layer a unit": (STAGE_3, False),
    "FSDP2, each layer a unit": (fsdp2(), False),
    "FSDP2, all layers in one unit": (fsdp2(lambda model: []), False),
    "FSDP2, units kept whole after forward": (fsdp2(reshard_after_forward=False), False),
    "`zero.Stage3`, all units gathered ahead": (engine(zero.Stage3, units=list, prefetch=8), False),
    "`zero.Stage3`, then `state_dict()` on every rank": (STAGE_3, True),
}


def peak_of(name: str, rows: int) -> float:
    """Return the peak of the fullest of four ranks, in multiples of the model's bytes."""
    make, save = MEASURED[name]
    run = World(4).run(two_steps, make, rows, save)
    return max(memory.peak_bytes for memory in run.memory) / run[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_the_page_has_the_peaks_that_are_measured(name: str) -> None:
    (stated,) = re.findall(rf"^\| {re.escape(name)} \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert [f"{peak_of(name, rows):.2f}" for rows in (1, 256)] == stated.split(" | ")


def test_the_page_has_the_numbers_that_lesson_10_recorded() -> None:
    lesson = (PAGE.parents[2] / "notebooks" / "10-production.ipynb").read_text(encoding="utf-8")

    for nbytes in ("2,775,261", "2,465,432"):
        assert nbytes in PAGE.read_text(encoding="utf-8")
        assert nbytes in lesson
