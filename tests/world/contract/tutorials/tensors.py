"""Meshes, distributed tensors, and models that are cut by layer or by column."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.functional import mse_loss

from tests.world.contract.tutorials.common import (
    N,
    adam,
    alone,
    batch,
    equal,
    everywhere,
    gradients,
    mesh,
    model,
    of_rank,
    same_model,
    sharded,
    train,
    tutorial,
)
from tests.world.programs import rank

# -- DeviceMesh and DTensor --------------------------------------------------------------------------------------------


@everywhere
def device_mesh() -> None:
    grid = mesh(2, 2, names=("data", "tensor"))
    assert tuple(grid.get_coordinate()) == (rank() // 2, rank() % 2)
    x = of_rank()
    dist.all_reduce(x, group=grid.get_group("tensor"))
    equal(x, [1, 10] if rank() < 2 else [5, 50])


@tutorial
def slices_of_a_mesh() -> None:
    grid = mesh(2, 2, names=("data", "tensor"))
    assert grid["data"].mesh.tolist() == [rank() % 2, rank() % 2 + 2]
    assert grid["data"].get_local_rank() == rank() // 2
    x = of_rank()
    dist.all_reduce(x, group=grid["data", "tensor"]._flatten().get_group())
    equal(x, [6, 60])


@everywhere
def dtensor() -> None:
    x = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh(), [Shard(0)])
    assert x.to_local().tolist() == [[2.0 * rank(), 2.0 * rank() + 1]]
    equal(x.full_tensor(), torch.arange(8.0).reshape(4, 2))


@tutorial
def dtensor_of_uneven_rows() -> None:
    x = distribute_tensor(torch.arange(6.0), mesh(), [Shard(0)])
    assert len(x.to_local()) == (2, 2, 2, 0)[rank()]
    equal((x * 2).full_tensor(), 2 * torch.arange(6.0))


@tutorial
def dtensor_is_redistributed() -> None:
    x = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh(), [Shard(0)])
    columns = x.redistribute(placements=[Shard(1)])
    equal(columns.to_local(), torch.arange(16.0).reshape(4, 4)[:, rank() : rank() + 1])
    equal(columns.redistribute(placements=[Replicate()]).to_local(), torch.arange(16.0).reshape(4, 4))


@tutorial
def partial_sums() -> None:
    x = DTensor.from_local(of_rank(), mesh(), [Partial()])
    equal(x.redistribute(placements=[Replicate()]).to_local(), [6, 60])


@tutorial
def matrix_product_of_dtensors() -> None:
    a, b = torch.arange(16.0).reshape(4, 4), torch.arange(16.0, 32.0).reshape(4, 4)
    product = distribute_tensor(a, mesh(), [Shard(1)]) @ distribute_tensor(b, mesh(), [Shard(0)])
    assert product.placements == (Partial(),)
    equal(product.full_tensor(), a @ b)


@tutorial
def gradient_of_a_dtensor() -> None:
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh(), [Shard(0)]))
    (weight * distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh(), [Shard(0)])).sum().backward()
    assert weight.grad.placements == (Shard(0),)
    equal(weight.grad.full_tensor(), torch.arange(16.0).reshape(4, 4))


@tutorial
def dtensor_on_two_dimensions() -> None:
    grid = mesh(2, 2, names=("data", "tensor"))
    x = distribute_tensor(torch.arange(16.0).reshape(4, 4), grid, [Shard(0), Shard(1)])
    row, column = grid.get_coordinate()
    equal(x.to_local(), torch.arange(16.0).reshape(4, 4)[2 * row : 2 * row + 2, 2 * column : 2 * column + 2])
    equal(x.sum().full_tensor(), 120)


@tutorial
def distribute_tensor_takes_the_values_of_rank_0() -> None:
    x = distribute_tensor(torch.full((8,), float(rank() + 5)), mesh(), [Shard(0)])
    equal(x.to_local(), [5, 5])


# -- tensor and sequence parallel --------------------------------------------------------------------------------------


COLUMNS_THEN_ROWS = {"0": ColwiseParallel, "2": RowwiseParallel}


def parallel(net, grid):
    return parallelize_module(net, grid, {name: style() for name, style in COLUMNS_THEN_ROWS.items()})


@everywhere
def tensor_parallel() -> None:
    net = parallel(model(), mesh())
    assert net[0].weight.to_local().shape == (2, 6) and net[2].weight.to_local().shape == (4, 2)
    same_model(train(net, adam(net), batch), alone())


@tutorial
def tensor_parallel_gives_the_same_output() -> None:
    net = parallel(model(), mesh())
    equal(net(batch()[0]), model()(batch()[0]))


@tutorial
def sequence_parallel() -> None:
    net = nn.Sequential(nn.LayerNorm(6), *model())
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Shard(0)),
    }
    expected = copy.deepcopy(net)
    net = parallelize_module(net, mesh(), plan)
    x = batch()[0]
    equal(net(x.chunk(N)[rank()]), expected(x).chunk(N)[rank()])


@tutorial
def fsdp_over_tensor_parallel() -> None:
    grid = mesh(2, 2, names=("data", "tensor"))
    net = sharded(parallel(model(), grid["tensor"]), mesh=grid["data"])
    train(net, adam(net), lambda step: [part[rank() // 2 :: 2] for part in batch(step)])
    same_model(net, alone())


@tutorial
def ddp_over_tensor_parallel_by_hand() -> None:
    grid = mesh(2, 2, names=("data", "tensor"))
    net = parallel(model(), grid["tensor"])

    def average() -> None:
        for param in net.parameters():
            dist.all_reduce(param.grad.to_local(), group=grid["data"].get_group())
            param.grad /= 2

    train(net, adam(net), lambda step: [part[rank() // 2 :: 2] for part in batch(step)], before_step=average)
    same_model(net, alone())


@tutorial
def pipeline_of_two_halves_by_hand() -> None:
    net, (x, y) = model(), batch()
    if rank() == 0:
        hidden = net[:2](x)
        dist.send(hidden.detach(), dst=1)
        dist.recv(gradient := torch.empty_like(hidden), src=1)
        hidden.backward(gradient)
        equal(net[0].weight.grad, gradients()[0])
    elif rank() == 1:
        dist.recv(hidden := torch.empty(8, 8), src=0)
        mse_loss(net[2](hidden.requires_grad_()), y).backward()
        dist.send(hidden.grad, dst=0)
    dist.barrier()
