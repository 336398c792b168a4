"""Optimizer states, parameters and checkpoints in parts."""

import math

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, zeros
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.world.contract.tutorials.common import (
    adam,
    alone,
    batch,
    equal,
    everywhere,
    gradients,
    mesh,
    model,
    same_model,
    sharded,
    share,
    train,
    tutorial,
)
from tests.world.programs import rank

# -- sharded states ----------------------------------------------------------------------------------------------------


@everywhere
def zero_redundancy_optimizer() -> None:
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    same_model(train(net, optimizer), alone())


@tutorial
def zero_redundancy_optimizer_holds_a_part() -> None:
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    train(net, optimizer)
    held = torch.tensor([len(optimizer.optim.state)])
    dist.all_reduce(held)
    assert held.item() == 4 and len(optimizer.optim.state) == 1


@tutorial
def zero_redundancy_optimizer_consolidates_its_state() -> None:
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    train(net, optimizer)
    optimizer.consolidate_state_dict(to=1)
    if rank() == 1:
        assert [state["step"].item() for state in optimizer.state_dict()["state"].values()] == [2] * 4


@tutorial
def zero_redundancy_optimizer_with_parameters_as_buckets() -> None:
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01, parameters_as_bucket_view=True)
    same_model(train(net, optimizer), alone())


@tutorial
def zero_redundancy_optimizer_joins_ranks_with_fewer_batches() -> None:
    net = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    nn.init.zeros_(net.module.weight)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    with Join([net, optimizer]):
        for _ in range(1 + (rank() == 0)):
            optimizer.zero_grad()
            net(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    equal(net.module.weight, [[-0.1 * (1 + 1 / 4)]])


@tutorial
def fsdp1() -> None:
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    train(net, adam(net))
    with FullyShardedDataParallel.summon_full_params(net):
        same_model(net, alone())


@everywhere
def fsdp() -> None:
    net = sharded(model())
    same_model(train(net, adam(net)), alone())


@tutorial
def fsdp_holds_a_part() -> None:
    net = sharded(model())
    assert net[0].weight.to_local().shape == (2, 6) and net[0].weight.placements == (Shard(0),)
    x, y = share()
    mse_loss(net(x), y).backward()
    assert net[0].weight.grad.to_local().shape == (2, 6)


@tutorial
def fsdp_keeps_parameters_after_the_forward() -> None:
    net = sharded(model(), reshard_after_forward=False)
    same_model(train(net, adam(net)), alone())


@tutorial
def hybrid_sharding() -> None:
    net = sharded(model(), mesh=mesh(2, 2, names=("replicate", "shard")))
    same_model(train(net, adam(net)), alone())


@tutorial
def fsdp_in_mixed_precision() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = sharded(model(), mp_policy=policy)
    x, y = share()
    out = net(x)
    assert out.dtype == torch.bfloat16 and net[0].weight.dtype == torch.float32
    mse_loss(out.float(), y).backward()
    torch.testing.assert_close(net[0].weight.grad.full_tensor(), gradients()[0], rtol=0.05, atol=0.01)


@tutorial
def fsdp_accumulates_gradients() -> None:
    net = sharded(model())
    for step in range(2):
        net.set_requires_gradient_sync(step == 1)
        x, y = share(step)
        mse_loss(net(x), y).backward()
    equal(net[0].weight.grad.full_tensor(), gradients(steps=2)[0])


@tutorial
def fsdp_clips_gradients() -> None:
    net, expected = sharded(model()), model()
    clip = nn.utils.clip_grad_norm_
    train(net, adam(net), before_step=lambda: clip(net.parameters(), 0.1))
    same_model(net, train(expected, adam(expected), batch, before_step=lambda: clip(expected.parameters(), 0.1)))


@tutorial
def fsdp_prefetches_by_hand() -> None:
    net = sharded(model())
    net[0].set_modules_to_forward_prefetch([net[2]])
    net[2].set_modules_to_backward_prefetch([net[0]])
    same_model(train(net, adam(net)), alone())


@tutorial
def fsdp_on_the_meta_device() -> None:
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    net = sharded(net).to_empty(device="cpu")
    for param in net.parameters():
        nn.init.constant_(param, 0.5)
    equal(net(torch.zeros(1, 6)), [[0.5 + 8 * 0.5 * math.tanh(0.5)] * 4])


@tutorial
def fsdp_with_activation_checkpointing() -> None:
    net = sharded(model())
    x, y = share()
    mse_loss(checkpoint(net, x, use_reentrant=False), y).backward()
    equal(net[0].weight.grad.full_tensor(), gradients()[0])


@tutorial
def fsdp_unshards_by_hand() -> None:
    net = sharded(model())
    net[0].unshard()
    equal(net[0].weight, model()[0].weight)
    net[0].reshard()
    assert isinstance(net[0].weight, DTensor)
    equal(net[0].weight.full_tensor(), model()[0].weight)


# -- checkpoints -------------------------------------------------------------------------------------------------------


@everywhere
def distributed_checkpoint(folder) -> None:
    net = sharded(model())
    train(net, adam(net))
    dcp.save({"model": get_model_state_dict(net)}, checkpoint_id=folder)
    fresh = sharded(model())
    state = {"model": get_model_state_dict(fresh)}
    dcp.load(state, checkpoint_id=folder)
    fresh.load_state_dict(state["model"])
    same_model(fresh, alone())


@tutorial
def distributed_checkpoint_of_an_optimizer(folder) -> None:
    net = sharded(model())
    optimizer = adam(net)
    train(net, optimizer, steps=1)
    names = ("model", "optimizer")
    dcp.save(dict(zip(names, get_state_dict(net, optimizer), strict=True)), checkpoint_id=folder)
    fresh = sharded(model())
    again = adam(fresh)
    state = dict(zip(names, get_state_dict(fresh, again), strict=True))
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(fresh, again, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    train(fresh, again, lambda step: share(1), steps=1)
    same_model(fresh, alone())


@tutorial
def distributed_checkpoint_of_replicas(folder) -> None:
    net = DistributedDataParallel(model())
    train(net, adam(net))
    dcp.save(net.module.state_dict(), checkpoint_id=folder)
    state = {name: torch.zeros_like(value) for name, value in net.module.state_dict().items()}
    dcp.load(state, checkpoint_id=folder)
    equal(state["0.weight"], alone()[0].weight.detach())


@tutorial
def resharding_a_checkpoint(folder) -> None:
    rows = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh(), [Shard(0)])
    dcp.save({"x": rows}, checkpoint_id=folder)
    columns = {"x": zeros(4, 4, device_mesh=mesh(), placements=[Shard(1)])}
    dcp.load(columns, checkpoint_id=folder)
    equal(columns["x"].to_local(), [[4.0 * row + rank()] for row in range(4)])
