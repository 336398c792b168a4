"""DistributedDataParallel, and the data of each rank."""

from contextlib import nullcontext
from itertools import chain

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.world.contract.tutorials.common import (
    N,
    adam,
    alone,
    batch,
    equal,
    everywhere,
    gradients,
    model,
    same_model,
    share,
    train,
    tutorial,
)
from tests.world.programs import rank

# -- data parallel -----------------------------------------------------------------------------------------------------


@everywhere
def ddp() -> None:
    net = DistributedDataParallel(model())
    same_model(train(net, adam(net)), alone())


@everywhere
def ddp_starts_from_rank_0() -> None:
    torch.manual_seed(rank())
    net = DistributedDataParallel(nn.Linear(4, 4))
    torch.manual_seed(0)
    same_model(net, nn.Linear(4, 4))


@tutorial
def data_parallel_by_hand() -> None:
    net = model()

    def average() -> None:
        for param in net.parameters():
            dist.all_reduce(param.grad)
            param.grad /= N

    same_model(train(net, adam(net), before_step=average), alone())


@tutorial
def ddp_accumulates_under_no_sync() -> None:
    net = DistributedDataParallel(model())
    for step in range(2):
        x, y = share(step)
        with net.no_sync() if step == 0 else nullcontext():
            mse_loss(net(x), y).backward()
    equal(net.module[0].weight.grad, gradients(steps=2)[0])


@tutorial
def ddp_clips_gradients() -> None:
    net, expected = DistributedDataParallel(model()), model()
    clip = nn.utils.clip_grad_norm_
    train(net, adam(net), before_step=lambda: clip(net.parameters(), 0.1))
    same_model(net, train(expected, adam(expected), batch, before_step=lambda: clip(expected.parameters(), 0.1)))


@tutorial
def ddp_finds_unused_parameters() -> None:
    net = DistributedDataParallel(Branches(), find_unused_parameters=True)
    net(torch.ones(2, 2), rank() % 2).sum().backward()
    for branch in net.module.branches:
        equal(branch.weight.grad, torch.ones(2, 2))  # 2 rows, from half of the ranks


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, x, which):
        return self.branches[which](x)


@tutorial
def ddp_with_a_static_graph() -> None:
    net = DistributedDataParallel(model(), static_graph=True)
    same_model(train(net, adam(net)), alone())


@tutorial
def ddp_with_gradients_as_views_of_buckets() -> None:
    net = DistributedDataParallel(model(), gradient_as_bucket_view=True, bucket_cap_mb=0.0001)
    same_model(train(net, adam(net)), alone())


@tutorial
def ddp_compresses_gradients_to_fp16() -> None:
    net = DistributedDataParallel(model())
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    x, y = share()
    mse_loss(net(x), y).backward()
    torch.testing.assert_close(net.module[0].weight.grad, gradients()[0], rtol=0.05, atol=0.005)


@tutorial
def ddp_with_a_comm_hook_of_ones_own() -> None:
    def hook(group, bucket):
        work = dist.all_reduce(bucket.buffer() / N, group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    net = DistributedDataParallel(model())
    net.register_comm_hook(None, hook)
    same_model(train(net, adam(net)), alone())


@tutorial
def ddp_under_autocast() -> None:
    net = DistributedDataParallel(model())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(share()[0])
    assert out.dtype == torch.bfloat16
    mse_loss(out.float(), share()[1]).backward()
    torch.testing.assert_close(net.module[0].weight.grad, gradients()[0], rtol=0.05, atol=0.005)


@tutorial
def ddp_with_activation_checkpointing() -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return self[2](checkpoint(lambda x: self[1](self[0](x)), x, use_reentrant=False))

    net = DistributedDataParallel(Checkpointed(*model()))
    same_model(train(net, adam(net)), alone())


@tutorial
def ddp_with_a_learning_rate_schedule() -> None:
    def scheduled(net, data):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        train(net, optimizer, data)
        schedule.step()
        return train(net, optimizer, data)

    same_model(scheduled(DistributedDataParallel(model()), share), scheduled(model(), batch))


@tutorial
def ddp_with_several_optimizers() -> None:
    for make in (torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
        net, expected = DistributedDataParallel(model()), model()
        train(net, make(net.parameters(), lr=0.01))
        same_model(net, train(expected, make(expected.parameters(), lr=0.01), batch))


@tutorial
def ddp_with_frozen_layers() -> None:
    net, expected = model(), model()
    for one in (net, expected):
        one[0].requires_grad_(False)
    net = DistributedDataParallel(net)
    trained = [p for p in net.parameters() if p.requires_grad]
    train(net, torch.optim.Adam(trained, lr=0.01))
    same_model(net, train(expected, torch.optim.Adam(expected[2].parameters(), lr=0.01), batch))


@tutorial
def ddp_keeps_buffers_of_rank_0() -> None:
    net = DistributedDataParallel(nn.BatchNorm1d(2))
    for _ in range(2):
        net(torch.full((3, 2), float(rank())))
    net.eval()
    everyone = [torch.empty(2) for _ in range(N)]
    dist.all_gather(everyone, net.module.running_mean)
    equal(torch.stack(everyone)[:, 0], [0, 0.1, 0.2, 0.3])


@tutorial
def ddp_saves_on_rank_0_and_loads_on_all(folder) -> None:
    net, path = DistributedDataParallel(model()), f"{folder}/model.pt"
    train(net, adam(net))
    if rank() == 0:
        torch.save(net.module.state_dict(), path)
    dist.barrier()
    fresh = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    fresh.load_state_dict(torch.load(path))
    same_model(fresh, alone())


@tutorial
def ddp_joins_ranks_with_fewer_batches() -> None:
    net = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    nn.init.zeros_(net.module.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Join([net]):
        for _ in range(rank() + 1):
            optimizer.zero_grad()
            net(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    equal(net.module.weight, [[-0.1 * (4 + 3 + 2 + 1) / 4]])


@tutorial
def ddp_in_a_subgroup() -> None:
    group = dist.new_group([0, 1])
    if rank() < 2:
        net = DistributedDataParallel(nn.Linear(2, 1, bias=False), process_group=group)
        net(torch.full((1, 2), float(rank()))).sum().backward()
        equal(net.module.weight.grad, [[0.5, 0.5]])
    dist.barrier()


@tutorial
def local_sgd() -> None:
    net = model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), steps=1)
    for param in net.parameters():
        dist.all_reduce(param.data)
        param.data /= N
    same_model(net, alone(lambda net: torch.optim.SGD(net.parameters(), lr=0.1), steps=1))


@tutorial
def synchronised_ema() -> None:
    net = DistributedDataParallel(model())
    average = torch.optim.swa_utils.AveragedModel(net.module)
    train(net, adam(net))
    average.update_parameters(net.module)
    same_model(average.module, alone())


# -- data --------------------------------------------------------------------------------------------------------------


@tutorial
def distributed_sampler_covers_all_data() -> None:
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data, shuffle=False))
    mine = [x.item() for (x,) in loader]
    everyone = [None] * N
    dist.all_gather_object(everyone, mine)
    assert mine == [rank(), rank() + N] and sorted(chain(*everyone)) == list(range(8))


@tutorial
def distributed_sampler_shuffles_each_epoch() -> None:
    sampler = DistributedSampler(range(16), seed=1)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        everyone = [None] * N
        dist.all_gather_object(everyone, list(sampler))
        orders.append(list(chain(*everyone)))
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(16))


@everywhere
def epochs_with_a_loader_and_ddp() -> None:
    data = TensorDataset(*batch())
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    net = DistributedDataParallel(model())
    optimizer = adam(net)
    for _ in range(2):
        train(net, optimizer, lambda step: next(iter(loader)), steps=1)
    same_model(net, alone_on_one_batch())


def alone_on_one_batch():
    net = model()
    return train(net, adam(net), lambda step: batch(0))
