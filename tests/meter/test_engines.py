"""What data parallel and sharded training hold and send, of torch's engines and of ours: the closed forms, exactly.

Ψ (Psi) is the number of parameters, N the number of ranks; everything is in fp32, of 4 bytes.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from course_lib import World, mark, zero

N = 4
LASTING = ("parameters", "gradients", "optimizer")


class Model(nn.Module):
    """A transformer layer of torch's and a head; the sizes of some tensors do not divide by N."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head, self.norm = nn.Linear(width, width + 3), nn.LayerNorm(width + 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.head(self.layer(x)))


MODEL = Model()
PSI = sum(p.numel() for p in MODEL.parameters())
TENSORS = len(list(MODEL.parameters()))
STEP_COUNTERS = 4 * TENSORS  # Adam counts steps in one float for each tensor that it updates


def backward(net: nn.Module) -> None:
    net(torch.randn(2, 8, 16)).square().sum().backward()


def padded(numel: int) -> int:
    return -(-numel // N) * N


# Memory


def test_ddp_with_adam_holds_16_bytes_for_each_parameter() -> None:
    def program() -> None:
        net = DistributedDataParallel(Model())
        optimizer = torch.optim.Adam(net.parameters())
        backward(net)
        optimizer.step()
        mark("step")

    for memory in World(N).run(program).memory:
        step = memory.marks["step"]
        by_category = {name: step.by_category[name] for name in LASTING}
        assert by_category == {"parameters": 4 * PSI, "gradients": 4 * PSI, "optimizer": 8 * PSI + STEP_COUNTERS}


def test_ddp_holds_its_buckets_beside_the_gradients() -> None:
    def program(view: bool):
        net = DistributedDataParallel(Model(), gradient_as_bucket_view=view)
        backward(net)
        return net

    for memory in World(N).run(program, False).memory:
        assert (memory.by_category["gradients"], memory.by_category["communication"]) == (4 * PSI, 4 * PSI)
    for memory in World(N).run(program, True).memory:
        assert (memory.by_category["gradients"], memory.by_category["communication"]) == (4 * PSI, 0)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, lambda net: zero.Stage2(net, torch.optim.SGD, lr=1e-3)])
def test_a_models_buffers_are_other_though_they_were_broadcast(wrap) -> None:
    def program():
        made = wrap(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
        made(torch.randn(4, 6)).sum().backward()
        made.zero_grad()
        mark("before it is done")
        return made

    buffers = 2 * 6 * 4 + 8  # running mean and variance, and a count
    for memory in World(2).run(program).memory:
        held, psi = memory.marks["before it is done"].by_category, 6 * 6 + 3 * 6
        assert held["other"] in range(buffers, buffers + 9)  # a stage's buckets keep a zero of 4 bytes each
        assert held["communication"] in (0, 4 * psi)  # nothing but DDP's bucket


def test_zero_redundancy_optimizer_shards_the_state_and_nothing_else() -> None:
    def program():
        net = DistributedDataParallel(Model())
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-3)
        backward(net)
        optimizer.step()
        return net, optimizer

    memories = World(N).run(program).memory
    for memory in memories:
        assert (memory.by_category["parameters"], memory.by_category["gradients"]) == (4 * PSI, 4 * PSI)
    assert sum(memory.by_category["optimizer"] for memory in memories) == 8 * PSI + STEP_COUNTERS


def sharded_by_fsdp2(reshard: bool) -> nn.Module:
    net = Model()
    fully_shard(net.layer, reshard_after_forward=reshard)
    return fully_shard(net, reshard_after_forward=reshard)


@pytest.mark.slow
def test_fsdp2_shards_everything() -> None:
    def program():
        net = sharded_by_fsdp2(reshard=True)
        optimizer = torch.optim.Adam(net.parameters())
        backward(net)
        optimizer.step()
        return net, optimizer

    for rank, memory in enumerate(World(N).run(program).memory):
        mine = sum(len(p.chunk(N)[rank]) * p[0].numel() for p in MODEL.parameters() if len(p.chunk(N)) > rank)
        tensors = sum(len(p.chunk(N)) > rank for p in MODEL.parameters())
        whole = sum(padded(len(p)) // N * p[0].numel() for p in MODEL.parameters())
        held = [memory.by_category[name] for name in LASTING]
        assert held == [4 * whole, 4 * whole, 8 * mine + 4 * tensors]


@pytest.mark.parametrize(
    ("engine", "copies"),  # of each category in the world: N where every rank holds all, 1 where each has its shard
    [
        (zero.DataParallel, {"parameters": N, "gradients": N, "optimizer": N}),
        (zero.Stage1, {"parameters": N, "gradients": N, "optimizer": 1}),
        (zero.Stage2, {"parameters": N, "gradients": 1, "optimizer": 1}),
        (zero.Stage3, {"parameters": 1, "gradients": 1, "optimizer": 1}),
    ],
)
def test_our_engines_hold_what_the_closed_forms_say(engine, copies: dict[str, int]) -> None:
    def program():
        net = engine(Model(), torch.optim.Adam, lr=1e-3)
        backward(net)
        net.step()
        net.zero_grad()
        backward(net)
        padding = sum(bucket.padded_numel - bucket.numel for bucket in net.buckets)
        return padding, 4 * len(net.optimizer.state)  # step counters, one float for each tensor

    run = World(N).run(program)
    held, padding = dict.fromkeys(LASTING, 0), run[0][0]
    for (_, counters), memory in zip(run, run.memory, strict=True):
        assert memory.by_category["communication"] == memory.by_category["activations"] == 0
        for name in LASTING:
            held[name] += memory.by_category[name] - counters * (name == "optimizer")
    in_gradients = 0 if engine is zero.Stage1 else padding  # where backward leaves gradients, there is none
    size = {"parameters": 4 * (PSI + padding), "gradients": 4 * (PSI + in_gradients), "optimizer": 8 * PSI}
    assert held == {name: copies[name] * size[name] for name in LASTING}
    assert (padding > 0) == (engine is not zero.DataParallel)
    most, least = (f(memory.current_bytes for memory in run.memory) for f in (max, min))
    assert most - least < 0.02 * most


# Communication


def after_the_first_step(run) -> list[dict[str, int]]:
    """What each rank sent from its mark on, by op."""
    sent = []
    for comm, memory in zip(run.comm, run.memory, strict=True):
        by_op: dict[str, int] = {}
        for call in comm.calls:
            if call.issued > memory.marks["set up"].seconds:
                by_op[call.op] = by_op.get(call.op, 0) + call.sent
        sent.append(by_op)
    return sent


def test_ddp_sends_two_psi() -> None:
    def program() -> None:
        net = DistributedDataParallel(Model())
        dist.barrier()
        mark("set up")
        backward(net)

    assert after_the_first_step(World(N).run(program)) == [{"all_reduce": 2 * 4 * PSI * (N - 1) / N}] * N


def test_zero_redundancy_optimizer_sends_three_psi() -> None:
    def program() -> None:
        net = DistributedDataParallel(Model())
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-3)
        dist.barrier()
        mark("set up")
        backward(net)
        optimizer.step()

    expected = {"all_reduce": 2 * 4 * PSI * (N - 1) / N, "broadcast": 4 * PSI * (N - 1) / N}
    assert after_the_first_step(World(N).run(program)) == [expected] * N


@pytest.mark.slow
@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp2_gathers_twice_with_resharding_and_once_without(reshard: bool) -> None:
    def program() -> None:
        net = sharded_by_fsdp2(reshard)
        dist.barrier()
        mark("set up")
        backward(net)

    whole = sum(padded(len(p)) * p[0].numel() for p in MODEL.parameters()) * 4 * (N - 1) / N
    for sent in after_the_first_step(World(N).run(program)):
        assert sent == {"all_gather": (2 if reshard else 1) * whole, "reduce_scatter": whole}


# Long runs


@pytest.mark.slow
def test_ten_steps_do_not_drift() -> None:
    def program() -> None:
        net = DistributedDataParallel(Model())
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(10):
            backward(net)
            optimizer.step()
            optimizer.zero_grad()
            mark(f"step {step}")

    for memory in World(2).run(program).memory:
        steps = list(memory.marks.values())[2:]  # DDP makes its buckets anew after the first
        assert {step.current_bytes for step in steps} == {steps[0].current_bytes}
        assert {step.peak_bytes for step in steps} == {memory.peak_bytes}
