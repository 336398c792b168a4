"""A run names parameters that drift apart and a NaN that stays, and says nothing of right programs."""

import re
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from course_lib import CourseWarning
from tests.world.programs import rank


def train(fault: str = "", *, ddp: bool = False, steps: int = 4) -> None:
    torch.manual_seed(rank() if fault == "seed" else 0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model = DistributedDataParallel(net) if ddp else net
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01 * (1 + rank() if fault == "rate" else 1))
    torch.manual_seed(100 + rank())
    for step in range(steps):
        optimizer.zero_grad()
        here, alone = (rank(), step) == (1, 2), fault == "alone" and step == 1
        with model.no_sync() if ddp and alone else nullcontext():
            loss = model(torch.randn(4, 8)).pow(2).mean()
            (loss * torch.nan if fault == "nan" and here else loss).backward()
        for param in () if ddp or alone else net.parameters():
            dist.all_reduce(param.grad)
        if fault == "scaler":  # skips the step in which it finds a NaN
            dist.all_reduce(torch.tensor([torch.nan, torch.inf]) if step == 2 else torch.ones(2))
        if fault == "mask":
            dist.broadcast(torch.full((4,), -torch.inf), 0)
        if fault == "skip" and here:
            continue
        if fault == "changed" and here:
            nn.init.zeros_(net[0].weight)
        optimizer.step()


FIRST = (
    "parameters differ (rank 0 | rank 1) after step 1 of rank 0 at _ or holds a different part of the model, as in "
    "tensor parallelism."
)
FAULTS = {
    "seed": f"{FIRST} They differ from this optimizer's first step on.",
    "rate": f"{FIRST} They differ from this optimizer's first step on.",
    "skip": "parameters differ (rank 0 | rank 1) after step 3 of rank 1 at _. Before it, they had made different "
    "numbers of steps (rank 0: 3; rank 1: 2).",
    "alone": "parameters differ (rank 0 | rank 1) after step 3 of rank 0 at _. They differed after the step "
    "before it, too. Next: look for a step whose gradients are not averaged, such as one after a backward in "
    "no_sync(), or for a gradient that is None on some ranks only. If a broadcast",
    "changed": "parameters differ (rank 0 | rank 1) after step 3 of rank 0 at _. They were equal after the "
    "step before it.",
}


@pytest.mark.parametrize("ddp", [False, True], ids=["by hand", "ddp"])
@pytest.mark.parametrize("fault", FAULTS)
def test_parameters_that_drift_apart(local_world, fault: str, ddp: bool) -> None:
    if fault == "seed" and ddp:
        assert local_world(2).run(train, fault, ddp=ddp).warnings == ()  # DDP broadcasts rank 0's
        return
    with pytest.warns(CourseWarning, match="parameters differ"):
        (warning,) = local_world(2).run(train, fault, ddp=ddp).warnings
    said = re.sub(r"test_drift.py line \d+, in train:  optimizer.step\(\)\. These .*? on purpose", "_", warning)
    assert said.startswith(FAULTS[fault])


def replicas_of_a_shard(shards: int, seed: int | None = None) -> None:
    mesh = init_device_mesh("cpu", (2, shards), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(rank() if seed is None else seed)
    net = fully_shard(nn.Linear(8, 8), mesh=mesh)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.arange(16.0).view(2, 8)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(("shards", "ranks"), [(1, "rank 0 | rank 1"), (2, "rank 0 | rank 2")])
def test_replicas_of_a_shard_that_drift_apart(local_world, shards: int, ranks: str) -> None:
    with pytest.warns(CourseWarning, match=re.escape(f"parameters differ ({ranks}) after step 1")):
        local_world(2 * shards).run(replicas_of_a_shard, shards)
    assert local_world(2 * shards).run(replicas_of_a_shard, shards, seed=0).warnings == ()


def adapters() -> None:
    """Of a LoRA without a common seed. In the first step, each second matrix is zero, and so the first one's gradient;
    of ten matrices, only these five are compared."""
    torch.manual_seed(rank())
    layers = [nn.Sequential(nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)) for _ in range(5)]
    net = nn.Sequential(*layers)
    for layer in layers:
        nn.init.zeros_(layer[1].weight)
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    for _ in range(3):
        x = torch.randn(4, 16)
        for layer in layers:
            x = x + layer(x)
        x.sub(1).square().mean().backward()
        for param in net.parameters():
            dist.all_reduce(param.grad)
        optimizer.step()
        optimizer.zero_grad()


def test_first_weights_may_differ_although_the_first_step_is_not_compared(local_world) -> None:
    with pytest.warns(CourseWarning, match="parameters differ"):
        (warning,) = local_world(2).run(adapters).warnings
    assert "after step 2 of rank" in warning and "Next: look for first weights that differ (a seed of each" in warning


def two_phases() -> None:
    """A warm-up of each rank, equal weights from rank 0, and then a learning rate that depends on the rank."""
    net = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    torch.manual_seed(rank())
    for _ in range(2):
        net(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
    for param in net.parameters():
        dist.broadcast(param.data, 0)
    optimizer.param_groups[0]["lr"] *= 1 + rank()
    net(torch.randn(4, 8)).pow(2).mean().backward()
    for param in net.parameters():
        dist.all_reduce(param.grad)
    optimizer.step()  # the faulty one


def test_the_line_is_the_steps_own_and_a_broadcast_is_allowed_for(local_world) -> None:
    with pytest.warns(CourseWarning, match="parameters differ"):
        (warning,) = local_world(2).run(two_phases).warnings
    assert "after step 3 of rank 0 at test_drift.py" in warning and "optimizer.step()  # the faulty one" in warning
    assert "unless each rank changes its own on purpose" in warning and "They differed after the step before" in warning
    assert "If a broadcast or a copy has made the parameters equal since, look for a learning rate" in warning


@pytest.mark.parametrize("ddp", [False, True], ids=["by hand", "ddp"])
def test_a_nan_that_stays(local_world, ddp: bool) -> None:
    with pytest.warns(CourseWarning, match="not finite"):
        (warning,) = local_world(2).run(train, "nan", ddp=ddp).warnings
    assert re.match(
        r"rank 1 brought a value that is not finite \(infinity or NaN\) to all_reduce #\d+ at .* in train", warning
    )


def masks() -> None:
    dist.broadcast(torch.full((4,), -torch.inf), 0)
    dist.all_reduce(torch.tensor([torch.nan if rank() else 1.0]))


@pytest.mark.parametrize(("replay", "op"), [(False, "all_reduce #1"), (True, "broadcast #1")])
def test_an_infinity_before_the_first_nan_is_not_denied(local_world, replay: bool, op: str) -> None:
    with pytest.warns(CourseWarning, match="not finite"):
        (warning,) = local_world(2, replay=replay).run(masks).warnings
    earlier = "one" if replay else "a NaN in the first 4,096 elements of a tensor"
    assert f" to {op} at " in warning and f"No earlier call had {earlier}. Next" in warning


def shards() -> None:
    torch.manual_seed(0)
    net = fully_shard(nn.Linear(8, 8))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.arange(16.0).view(2, 8)).sum().backward()  # the gradients of both shards are equal
    optimizer.step()


def learns_alone() -> None:
    torch.manual_seed(rank())
    net = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.arange(16.0).view(2, 8)).sum().backward()  # its gradients are equal, whatever the weights are
    dist.all_reduce(torch.ones(4))
    optimizer.step()


def population(copy: str) -> None:
    """Ranks train on their own, and then take the best weights."""
    torch.manual_seed(rank())
    net = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01 * (1 + rank()))
    for generation in range(3):
        batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(generation))
        for _ in range(2):
            optimizer.zero_grad()
            net(batch).pow(2).mean().backward()
            optimizer.step()
        for param in net.parameters():
            if copy == "broadcast":
                dist.broadcast(param.data, 0)
            elif rank() == 0:
                dist.send(param.data, 1)
            else:
                dist.recv(param.data, 0)


def by_broadcast() -> None:
    population("broadcast")


def by_message() -> None:
    population("send")


RIGHT = [train, shards, learns_alone, by_broadcast, by_message]


@pytest.mark.parametrize("program", [*RIGHT, lambda: train("scaler"), lambda: train("mask")])
def test_right_programs(local_world, program) -> None:
    assert local_world(2).run(program).warnings == ()
