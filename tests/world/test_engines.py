"""torch's own engines run unmodified, and train to the numbers of one process on the whole batch."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from course_lib import World

STEPS = 5


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(24, 8, generator=generator), torch.randn(24, 4, generator=generator)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(net(x), y).backward()
        optimizer.step()


def share() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch()
    return x[dist.get_rank() :: dist.get_world_size()], y[dist.get_rank() :: dist.get_world_size()]


def one_process() -> list[torch.Tensor]:
    net = model()
    train(net, torch.optim.Adam(net.parameters(), lr=1e-2), *batch())
    return [p.detach() for p in net.parameters()]


def ddp() -> list[torch.Tensor]:
    net = DistributedDataParallel(model())
    train(net, torch.optim.Adam(net.parameters(), lr=1e-2), *share())
    return [p.detach() for p in net.parameters()]


def zero_redundancy() -> list[torch.Tensor]:
    net = DistributedDataParallel(model())
    train(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-2), *share())
    return [p.detach() for p in net.parameters()]


def fsdp1() -> list[torch.Tensor]:
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    train(net, torch.optim.Adam(net.parameters(), lr=1e-2), *share())
    with FullyShardedDataParallel.summon_full_params(net):
        return [p.detach().clone() for p in net.parameters()]


def fsdp2(*mesh_shape: int) -> list[torch.Tensor]:
    names = ("replicate", "shard") if mesh_shape else None
    mesh = init_device_mesh("cpu", mesh_shape or (dist.get_world_size(),), mesh_dim_names=names)
    net = model()
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    train(net, torch.optim.Adam(net.parameters(), lr=1e-2), *share())
    return [p.full_tensor().detach() for p in net.parameters()]


def hsdp() -> list[torch.Tensor]:
    return fsdp2(2, 2)


@pytest.mark.parametrize("engine", [ddp, zero_redundancy, fsdp1, fsdp2, hsdp])
def test_every_rank_ends_where_one_process_ends(engine) -> None:
    expected = one_process()
    run = World(4).run(engine)
    for parameters in run:
        torch.testing.assert_close(parameters, run[0], rtol=0, atol=0)
        torch.testing.assert_close(parameters, expected)


@pytest.mark.parametrize("engine", [ddp, fsdp2])
def test_two_runs_give_the_same_bits(engine) -> None:
    first, second = World(3).run(engine), World(3).run(engine)
    for mine, theirs in zip(first, second, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
