"""DeepSpeed trains as one process does, whatever its configuration says of sharding. Skipped where it is missing."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib import World, production

needs_deepspeed = pytest.mark.skipif(
    production.deepspeed_version() is None, reason="DeepSpeed, the extra `deepspeed`, is not installed"
)
CPU = {"device": "cpu"}
GATHER_ALL = {
    "stage3_param_persistence_threshold": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
}


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


@needs_deepspeed
@pytest.mark.slow
def test_every_stage_has_the_losses_of_one_process() -> None:
    expected = torch.tensor(World(1).run(alone)[0])
    world = World(2, backend="processes", timeout=200)
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
        run = world.run(production.train, make_model, batch, F.mse_loss, settings, 4)
        losses = torch.tensor(list(run)).mean(dim=0)
        assert torch.allclose(losses, expected, rtol=1e-5), settings
        assert production.explain(settings, 2).faults == ()


@needs_deepspeed
@pytest.mark.slow
def test_it_clips_unless_it_is_told_not_to() -> None:
    settings = config(2)
    del settings["gradient_clipping"]
    run = World(2, backend="processes", timeout=200).run(production.train, make_model, batch, F.mse_loss, settings, 4)

    assert not torch.allclose(torch.tensor(list(run)).mean(dim=0), torch.tensor(World(1).run(alone)[0]), rtol=1e-5)


def test_the_version_is_none_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    assert production.deepspeed_version() is None
