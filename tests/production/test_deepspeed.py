"""DeepSpeed trains as one process does, whatever its configuration says of sharding. Skipped where it is missing."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib import RankError, World, production
from course_lib.errors import CourseError

needs_deepspeed = pytest.mark.skipif(
    production.deepspeed_version() is None, reason="DeepSpeed, the extra `deepspeed`, is not installed"
)
CPU = {"device": "cpu"}
GATHER_ALL = {
    "stage3_param_persistence_threshold": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
}
LOAD_UNIVERSAL = {"checkpoint": {"load_universal": True}}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 33), nn.Tanh(), nn.Linear(33, 1))


def batch(step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
    mine = x.chunk(dist.get_world_size())[dist.get_rank()]
    return mine, mine.sum(1, keepdim=True)


def config(stage: int, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "zero_force_ds_cpu_optimizer": False,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.0, "torch_adam": True}},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 100, **more},
    }


def alone() -> list[float]:
    model, losses = make_model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    for step in range(4):
        inputs, targets = batch(step)
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trained(ranks: int, settings: dict[str, Any], steps: int, **folders: str) -> Tensor:
    """The mean losses of `ranks` ranks, [steps]."""
    world = World(ranks, backend="processes", timeout=200)
    run = world.run(production.train, make_model, batch, F.mse_loss, settings, steps, **folders)
    return torch.tensor(list(run)).mean(dim=0)


@needs_deepspeed
@pytest.mark.slow
def test_every_stage_has_the_losses_of_one_process() -> None:
    expected = torch.tensor(World(1).run(alone)[0])
    for settings in (
        config(0),
        config(1),
        config(2, overlap_comm=True),
        config(2, contiguous_gradients=False),
        config(2, offload_optimizer=CPU),
        config(3),
        config(3, **GATHER_ALL),
        config(3, **GATHER_ALL, stage3_prefetch_bucket_size=0),
        config(3, **GATHER_ALL, offload_optimizer=CPU, offload_param=CPU),
    ):
        assert torch.allclose(trained(2, settings, 4), expected, rtol=1e-5), settings
        assert production.explain(settings, 2).faults == ()


@needs_deepspeed
@pytest.mark.slow
def test_it_clips_unless_it_is_told_not_to() -> None:
    settings = config(2)
    del settings["gradient_clipping"]

    assert not torch.allclose(trained(2, settings, 4), torch.tensor(World(1).run(alone)[0]), rtol=1e-5)


@needs_deepspeed
@pytest.mark.slow
def test_what_some_ranks_ran_before_does_not_matter() -> None:
    expected = torch.tensor(World(1).run(alone)[0])
    trained(2, config(3, **GATHER_ALL), 1)

    for settings in config(2), config(3, **GATHER_ALL):
        assert torch.allclose(trained(4, settings, 4), expected, rtol=1e-5), settings


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_other_ranks_go_on_from_a_checkpoint(stage: int, tmp_path: Path) -> None:
    settings = config(stage, **GATHER_ALL) if stage == 3 else config(stage)
    before = trained(4, settings, 2, save=str(tmp_path))
    production.universal(str(tmp_path))
    after = trained(2, settings | LOAD_UNIVERSAL, 2, resume=str(tmp_path))

    assert torch.allclose(torch.cat([before, after]), torch.tensor(World(1).run(alone)[0]), rtol=1e-5)


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_other_ranks_are_refused_without_conversion(stage: int, tmp_path: Path) -> None:
    trained(4, config(stage), 2, save=str(tmp_path))

    with pytest.raises(RankError, match=r"used a DP world size of 4 but the current world size is 2"):
        trained(2, config(stage), 2, resume=str(tmp_path))


@needs_deepspeed
@pytest.mark.slow
def test_without_zero_there_is_nothing_to_convert(tmp_path: Path) -> None:
    before = trained(4, config(0), 2, save=str(tmp_path))
    with pytest.raises(CourseError, match=r"could not convert .*_optim_states.pt .* Only stages 1, 2 and 3"):
        production.universal(str(tmp_path))
    after = trained(2, config(0), 2, resume=str(tmp_path))

    assert torch.allclose(torch.cat([before, after]), torch.tensor(World(1).run(alone)[0]), rtol=1e-5)


@needs_deepspeed
@pytest.mark.slow
def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=f"{tmp_path} has no checkpoint of DeepSpeed's"):
        trained(2, config(2), 2, resume=str(tmp_path))


def test_nothing_is_converted_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=f"{tmp_path} has no checkpoint of DeepSpeed's"):
        production.universal(str(tmp_path))


def test_the_version_is_none_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    assert production.deepspeed_version() is None
