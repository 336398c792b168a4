"""What activations take is measured on one rank, and planned for any: convolutional models, with batches that count."""

from itertools import accumulate

import pytest
import torch
from torch import nn

from course_lib import World
from course_lib.planner import plan
from course_lib.zero.units import blocks, parameters_by_unit
from tests.planner.test_against_meter import RANKS, train
from tests.planner.test_fully_shard import Trained
from tests.planner.test_fully_shard import train as train_fully_sharded
from tests.planner.test_other_models import MODELS, Known, of


def plain_step(known: Known) -> None:
    torch.manual_seed(0)
    known.loss(known.make()).backward()


def measured(known: Known) -> int:
    """The most that activations and their gradients take at once, as `plan` says to measure it."""
    memory = World(1).run(plain_step, known).memory[0]
    return max(accumulate(e.deltas.get("activations", 0) + e.deltas.get("other", 0) for e in memory.timeline))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm(self.conv(x)))


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), *(Residual() for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 10, 1)
    )


KNOWN = {
    "convolutions": Known(MODELS["convolutions"].make, of(32, 3, 16, 16)),
    "unet": Known(MODELS["unet"].make, of(64, 3, 16, 16)),
    "residual": Known(residual, of(16, 3, 16, 16)),
}


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("name", KNOWN)
def test_this_courses_engines(name: str, stage: int) -> None:
    check(KNOWN[name], "zero", stage)


@pytest.mark.parametrize("name", KNOWN)
def test_fully_shard(name: str) -> None:
    check(KNOWN[name], "torch", 3)


def check(known: Known, engine: str, stage: int) -> None:
    model, nbytes = known.make(), measured(known)
    units = [[param.shape for param in unit] for unit in parameters_by_unit(model, blocks(model)).values()]
    params = units if stage == 3 else [param.shape for param in model.parameters()]
    given = {"world_size": RANKS, "stage": stage, "precision": "fp32", "engine": engine, "activation_bytes": nbytes}
    if engine == "torch":
        run = World(RANKS).run(train_fully_sharded, known, Trained())
    else:
        run = World(RANKS).run(train, known.make, known.loss, stage, "fp32")
    peak = run.memory[0].peak_bytes

    assert nbytes > 0.8 * peak
    assert plan(params=params, **given).peak_bytes == pytest.approx(peak, rel=0.06)
