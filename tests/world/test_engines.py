"""torch's engines train to the same bits on every rank and in every run. Their numbers: see `contract/tutorials`."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from course_lib import World


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(net: nn.Module) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        x, y = torch.randn(8, 8, generator=generator), torch.randn(8, 4, generator=generator)
        mse_loss(net(x), y).backward()
        optimizer.step()


def ddp() -> list[torch.Tensor]:
    net = DistributedDataParallel(model())
    train(net)
    return [p.detach() for p in net.parameters()]


def fsdp2() -> list[torch.Tensor]:
    net = model()
    for layer in (net[0], net[2], net):
        fully_shard(layer)
    train(net)
    return [p.full_tensor().detach() for p in net.parameters()]


@pytest.mark.parametrize("engine", [ddp, fsdp2])
def test_two_runs_give_the_same_bits_on_every_rank(engine) -> None:
    first, second = World(3).run(engine), World(3).run(engine)
    for parameters in (*first, *second):
        torch.testing.assert_close(parameters, first[0], rtol=0, atol=0)
