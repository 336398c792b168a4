"""The list of programs, and the small model, data and comparisons that they share."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import mse_loss

from tests.world.programs import rank

N = 4
PROGRAMS = {}
EVERYWHERE = []


def tutorial(program):
    """Enter a program."""
    PROGRAMS[program.__name__] = program
    return program


def everywhere(program):
    """Enter a program that runs on every backend, because it goes through what backends do differently."""
    EVERYWHERE.append(program.__name__)
    return tutorial(program)


def equal(actual, expected) -> None:
    """Assert that tensors, or numbers, are the same up to rounding."""
    as_tensors = [torch.as_tensor(value, dtype=torch.float32) for value in (actual, expected)]
    torch.testing.assert_close(*as_tensors)


def same_model(net, expected) -> None:
    """Assert that the parameters of `net`, gathered if they are sharded, are those of `expected`."""
    for mine, theirs in zip(net.parameters(), expected.parameters(), strict=True):
        equal(whole(mine).detach(), theirs.detach())


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def of_rank() -> torch.Tensor:
    return torch.tensor([1.0, 10.0]) * rank()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def batch(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator)


def share(step: int = 0) -> list[torch.Tensor]:
    """This rank's rows of a batch."""
    return [part[rank() :: N] for part in batch(step)]


def train(net, optimizer, data=share, steps=2, before_step=lambda: None):
    for step in range(steps):
        x, y = data(step)
        optimizer.zero_grad()
        mse_loss(net(x), y).backward()
        before_step()
        optimizer.step()
    return net


def adam(net) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.01)


def alone(make=adam, **options) -> nn.Module:
    """The model that one process trains on whole batches."""
    net = model()
    return train(net, make(net), batch, **options)


def gradients(steps: int = 1) -> list[torch.Tensor]:
    """Those of whole batches, in one process."""
    net = model()
    for step in range(steps):
        x, y = batch(step)
        mse_loss(net(x), y).backward()
    return [param.grad for param in net.parameters()]


def mesh(*shape, names=None):
    return init_device_mesh("cpu", shape or (N,), mesh_dim_names=names)


def sharded(net, **options):
    for layer in (net[0], net[2], net):
        fully_shard(layer, **options)
    return net
