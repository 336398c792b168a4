"""Later cells work with every answer that an exercise accepts, not only with its reference."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pytest
from torch.optim import Adam

from course_lib import World, exercises

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SHARDED_STEPS = exercises.get("zero1.sharded_step").variants


def run_cells(notebook: str, beginnings: tuple[str, ...], names: dict[str, Any]) -> dict[str, Any]:
    """Run the cells that begin with one of `beginnings`, after the definition of `names`; return all names."""
    cells = nbformat.read(NOTEBOOKS / notebook, as_version=4).cells
    for beginning in beginnings:
        [source] = [cell.source for cell in cells if cell.source.startswith(beginning)]
        exec(compile(source, f"<{beginning}>", "exec"), names)
    return names


def reference(exercise: str) -> Callable[..., Any]:
    return exercises.get(exercise).reference


@pytest.mark.slow
@pytest.mark.parametrize("answer", SHARDED_STEPS)
def test_zero_1_goes_on_from_the_checkpoint_of_every_accepted_step(answer: str) -> None:
    names: dict[str, Any] = {
        "partition": reference("zero1.partition"),
        "make_sharded_step": SHARDED_STEPS[answer](),
        "consolidate": reference("zero1.consolidate"),
        "world": (world := World(4)),
        "decimals": lambda losses, first: [loss.item() for loss in losses],
    }
    defined = ("from collections", "def make_model", "def train(", "class Sharded:", "def train_and_save", "def go_on")
    lesson = run_cells("04-zero-1.ipynb", defined, names)

    without_a_stop = world.run(lesson["train"], lesson["Sharded"], 4)[0][2:]
    resumed = World(1).run(lesson["go_on"], partial(Adam, lr=3e-3))[0]

    assert resumed == pytest.approx(without_a_stop, rel=1e-5)
