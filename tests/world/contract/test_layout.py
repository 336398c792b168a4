"""`run.layout()` finds by comparing where a tensor is replicated, sharded, partial or different over the ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from course_lib import zero
from tests.world.programs import rank

SPARSE = torch.eye(2).to_sparse()


def rows(run) -> list[tuple[str, ...]]:
    """The table without lines of code: the call, the tensor, and the rest."""
    lines = str(run.layout()).splitlines()
    starts = [0, *(lines[0].index(word) for word in ("tensor", "before", "after"))]
    cells = [[line[i:j].strip() for i, j in zip(starts, [*starts[1:], None], strict=True)] for line in lines[1:]]
    return [(call, tensor.partition(" at ")[0], before, after) for call, tensor, before, after in cells]


def batch() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(rank()))


def trains(*, forgets="", repeats=""):
    """Two steps of data parallel by hand."""
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(2):
        net(batch()).square().mean().backward()
        for name, parameter in net.named_parameters():
            for _ in range((name != forgets) + (name == repeats and step == 1)):
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    return net


def test_right_data_parallel_has_no_arrow(world):
    run = world(3, replay=True).run(trains)
    assert rows(run) == [
        ("all_reduce #1 and 1 more", "net.weight.grad", "Partial", "Replicate"),
        ("all_reduce #2 and 1 more", "net.bias.grad", "Partial", "Replicate"),
        ("returned", "weight", "", "Replicate"),
        ("returned", "bias", "", "Replicate"),
    ]


def test_a_missing_reduction_is_found_at_its_parameter(local_world):
    run = local_world(3, replay=True).run(trains, forgets="weight")
    assert rows(run)[1:] == [
        ("returned", "weight", "", "Varying    ← differs: rank 0 | rank 1 | rank 2"),
        ("returned", "bias", "", "Replicate"),
    ]


def test_a_second_reduction_is_found_at_its_call(local_world):
    run = local_world(2, replay=True).run(trains, repeats="bias")
    assert [row for row in rows(run) if "←" in row[3]] == [
        ("all_reduce #5", "net.bias.grad", "Replicate", "Replicate  ← reduces the result of all_reduce #4 again")
    ]


def reduces_in_a_different_order():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    net(batch()).square().mean().backward()
    for parameter in list(net.parameters())[:: -1 if rank() else 1]:
        dist.all_reduce(parameter.grad)
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def test_tensors_that_ranks_reduce_in_a_different_order(local_world):
    found = rows(local_world(2, replay=True).run(reduces_in_a_different_order))
    assert found[0][:2] == ("all_reduce #1", "net.0.weight.grad | net.1.weight.grad")
    assert ("returned", "0.weight", "", "Varying    ← differs: rank 0 | rank 1") in found


def reduces_what_ddp_has_averaged():
    net = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    net(batch()).square().mean().backward()
    dist.all_reduce(net.module.weight.grad)


def test_a_reduction_of_what_ddp_has_averaged(local_world):
    found = [row for row in rows(local_world(2, replay=True).run(reduces_what_ddp_has_averaged)) if "←" in row[3]]
    assert [row[1] for row in found] == ["net.module.weight.grad"]
    assert found[0][3] == "Replicate  ← every rank brought the same values: reduced before, or meant?"


def test_tensors_without_data_and_conjugates(local_world):
    assert "meta" not in str(local_world(2).run(lambda: torch.empty(2, device="meta")).layout())
    numbers = torch.tensor([1 + 2j])
    conjugated = local_world(2).run(lambda: numbers.conj() if rank() else numbers)
    assert "Varying" in conjugated.layout() and "Replicate" not in conjugated.layout()


def shards():
    flat = torch.arange(4.0) + rank()
    shard, whole, rows = torch.empty(2), torch.empty(4), torch.empty(2)
    dist.reduce_scatter_single(shard, flat)
    dist.all_gather_single(whole, shard)
    dist.broadcast(rows, src=1)
    return {"shard": shard, "flat": flat, "whole": whole, "rank": torch.tensor(rank())}


def test_layouts_follow_from_the_calls(world):
    assert rows(world(2, replay=True).run(shards))[:2] == [
        ("reduce_scatter_single #1", "flat", "Partial", "Shard"),
        ("all_gather_single #1", "shard", "Shard", "Replicate"),
    ]
    assert rows(world(2, replay=True).run(shards))[3:] == [
        ("returned", "shard", "", "Shard"),
        ("returned", "flat", "", "Partial"),
        ("returned", "whole", "", "Replicate"),
        ("returned", "rank", "", "Varying    ← differs: rank 0 | rank 1"),
    ]


def test_results_are_compared_without_a_replay_too(local_world):
    run = local_world(2).run(lambda: [torch.ones(3, 2).t(), {"mine": torch.tensor(rank()), "sparse": SPARSE}])
    text = str(run.layout())
    assert "sparse" not in text  # it is not compared
    assert "returned  0               Replicate\n" in text and "1.mine          Varying" in text
    assert text.endswith("make the world with World(…, replay=True).")


def trains_with(stage):
    torch.manual_seed(0)
    engine = stage(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), torch.optim.Adam)
    engine(batch()).square().mean().backward()
    engine.step()
    return engine.state_dict()


def trains_with_fsdp():
    torch.manual_seed(0)
    net = fully_shard(nn.Linear(4, 2))
    net(batch()).square().mean().backward()
    return [parameter.grad.full_tensor() for parameter in net.parameters()]


@pytest.mark.parametrize(
    "program",
    [trains_with_fsdp, *(lambda stage=stage: trains_with(stage) for stage in (zero.Stage1, zero.Stage2, zero.Stage3))],
)
def test_engines_have_no_arrow(local_world, program):
    table = str(local_world(2, replay=True).run(program).layout())
    assert "Shard" in table and "Varying" not in table and "←" not in table
