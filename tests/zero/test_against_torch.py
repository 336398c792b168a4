"""Ours beside torch's own: the same losses over 15 steps of a small transformer on real text, and what each sends."""

from itertools import islice
from pydoc_data.topics import topics

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from benchmarks.stages import Transformer
from course_lib import zero
from tests.zero.models import world

TEXT = "".join(topics[name] for name in ("naming", "objects", "typesmethods"))  # Python's own manual
RANKS, STEPS, LENGTH, BATCH = 3, 15, 24, 2


def stretches():
    """[RANKS * BATCH, LENGTH] bytes of the text, one stretch after the other, for each step."""
    rows = torch.frombuffer(bytearray(TEXT.encode()), dtype=torch.uint8).long().split(RANKS * BATCH * LENGTH)
    return islice((stretch.view(RANKS * BATCH, LENGTH) for stretch in rows), STEPS)


def transformer():
    torch.manual_seed(0)
    return Transformer(width=16, depth=2).double()  # so that 15 steps of rounding do not tell them apart


def loss_of(model, x):
    logits = model(x[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())


def losses(model, optimizer, rows=slice(None)):
    told = []
    for stretch in stretches():
        optimizer.zero_grad()
        loss = loss_of(model, stretch[rows])
        loss.backward()
        optimizer.step()
        told.append(loss.item())
    return torch.tensor(told)


def ours(engine, model, **options):
    made = getattr(zero, engine)(model, AdamW, **options)
    return made, made


def data_parallel_with_sharded_optimizer(model):
    parallel = zero.DataParallel(model, AdamW)
    return parallel, zero.ShardedOptimizer(model.parameters(), AdamW, lr=1e-2)


def ddp(model):
    parallel = DistributedDataParallel(model)
    return parallel, AdamW(parallel.parameters(), lr=1e-2)


def ddp_with_zero_redundancy_optimizer(model):
    return DistributedDataParallel(model), ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=1e-2)


def ddp_with_sharded_optimizer(model):
    return DistributedDataParallel(model), zero.ShardedOptimizer(model.parameters(), AdamW, lr=1e-2)


def fsdp2(model):
    for block in model.blocks:
        fully_shard(block)
    sharded = fully_shard(model)
    return sharded, AdamW(sharded.parameters(), lr=1e-2)


MADE = {
    "DDP": ddp,
    "DDP and ZeroRedundancyOptimizer": ddp_with_zero_redundancy_optimizer,
    "DDP and ShardedOptimizer": ddp_with_sharded_optimizer,
    "FSDP2": fsdp2,
    "DataParallel": lambda model: ours("DataParallel", model, lr=1e-2),
    "DataParallel and ShardedOptimizer": data_parallel_with_sharded_optimizer,
    "Stage1": lambda model: ours("Stage1", model, lr=1e-2),
    "Stage2": lambda model: ours("Stage2", model, lr=1e-2, bucket_bytes=10_000),
    "Stage3": lambda model: ours("Stage3", model, lr=1e-2, prefetch=2),
}


@pytest.fixture(scope="module")
def in_one_process():
    model = transformer()
    told = losses(model, AdamW(model.parameters(), lr=1e-2))
    assert told[-5:].mean() < 0.75 * told[:5].mean(), "it learns nothing: equal losses would prove nothing"
    return told


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MADE if "Stage" in name or "ShardedOptimizer" in name])
def test_losses_of_a_transformer_on_text_are_those_of_one_process(name, in_one_process) -> None:
    def rank():
        first = dist.get_rank() * BATCH
        return losses(*MADE[name](transformer()), rows=slice(first, first + BATCH))

    averaged = sum(world(RANKS).run(rank)) / RANKS
    torch.testing.assert_close(averaged, in_one_process, rtol=1e-6, atol=0)


# What is sent in a step, in elements of the model: sizes that divide evenly, so that nothing is padding


class Even(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(12, 12, bias=False) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("name", "volume"),
    [
        ("DDP", 2),
        ("DataParallel", 2),
        ("DDP and ZeroRedundancyOptimizer", 3),
        ("DDP and ShardedOptimizer", 3),
        ("Stage1", 2),
        ("Stage2", 2),
        ("FSDP2", 3),
        ("Stage3", 3),
    ],
)
def test_what_a_step_sends(name, volume) -> None:
    def rank() -> None:
        model, optimizer = MADE[name](Even())
        for step in range(3):  # in the first two, DDP also sets itself up
            if step == 2:
                dist.barrier()
            model(torch.ones(2, 12)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    sent = []
    for rank_comm in world(3).run(rank).comm:
        calls = [call for call in rank_comm.calls if call.op != "barrier"]
        barrier = next(call for call in rank_comm.calls if call.op == "barrier")
        sent.append(sum(call.sent for call in calls if call.issued > barrier.issued))
    assert sum(sent) == volume * 4 * 3 * 12 * 12 * (3 - 1)


def test_torchs_overlap_trains_nothing_without_its_hook_which_gloo_refuses() -> None:
    """What lesson 10 says of `overlap_with_ddp`."""

    def rank():
        model = DistributedDataParallel(nn.Linear(2, 2))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, overlap_with_ddp=True, lr=1.0)
        before = [param.detach().clone() for param in model.parameters()]
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        with pytest.raises(RuntimeError, match="Gloo backend"):
            hook_with_zero_step(allreduce_hook, model, optimizer)
        return all(map(torch.equal, before, model.parameters()))

    assert [*world(2).run(rank)] == [True, True]
