"""`run.layout()` finds by comparing where a tensor is replicated, sharded, partial or different over the ranks."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib import zero
from tests.world.programs import rank

SAME = "← every rank brought the same values: reduced before, the same data on every rank, or on purpose?"
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


def test_right_data_parallel_has_no_arrow(local_world) -> None:
    run = local_world(3, replay=True).run(trains)
    assert rows(run) == [
        ("all_reduce #1 and 1 more", "net.weight.grad", "Partial", "Replicate"),
        ("all_reduce #2 and 1 more", "net.bias.grad", "Partial", "Replicate"),
        ("returned", "weight", "", "Replicate"),
        ("returned", "bias", "", "Replicate"),
    ]


def test_a_missing_reduction_is_found_at_its_parameter(local_world) -> None:
    run = local_world(3, replay=True).run(trains, forgets="weight")
    assert rows(run)[1:] == [
        ("returned", "weight", "", "Varying    ← differs on every rank"),
        ("returned", "bias", "", "Replicate"),
    ]


def test_a_second_reduction_is_found_at_its_call(local_world) -> None:
    run = local_world(2, replay=True).run(trains, repeats="bias")
    remark = "← every rank brought what all_reduce #4 returned: reduced twice?"
    assert [row for row in rows(run) if "←" in row[3]] == [
        ("all_reduce #5", "net.bias.grad", "Replicate", f"Replicate  {remark}")
    ]


def reduces_in_a_different_order():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    net(batch()).square().mean().backward()
    for parameter in list(net.parameters())[:: -1 if rank() else 1]:
        dist.all_reduce(parameter.grad)
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def test_a_list_that_contains_itself_is_read_once(local_world) -> None:
    def cycle():
        values = [torch.full((2,), float(rank()))]
        values.append(values)
        return values

    assert [row[1] for row in rows(local_world(2).run(cycle))] == ["0"]


def test_tensors_that_ranks_reduce_in_a_different_order(local_world) -> None:
    found = rows(local_world(2, replay=True).run(reduces_in_a_different_order))
    assert found[0][:2] == ("all_reduce #1", "net.0.weight.grad | net.1.weight.grad")
    assert ("returned", "0.weight", "", "Varying    ← differs: rank 0 | rank 1") in found


def reduces_what_ddp_has_averaged() -> None:
    net = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    net(batch()).square().mean().backward()
    dist.all_reduce(net.module.weight.grad)


def test_a_reduction_of_what_ddp_has_averaged(local_world) -> None:
    found = [row for row in rows(local_world(2, replay=True).run(reduces_what_ddp_has_averaged)) if "←" in row[3]]
    assert [row[1] for row in found] == ["net.module.weight.grad"]
    assert found[0][3] == f"Replicate  {SAME}"


def test_tensors_without_data_and_conjugates(local_world) -> None:
    assert "meta" not in str(local_world(2).run(lambda: torch.empty(2, device="meta")).layout())
    numbers = torch.tensor([1 + 2j])
    conjugated = local_world(2).run(lambda: numbers.conj() if rank() else numbers)
    assert "Varying" in conjugated.layout() and "Replicate" not in conjugated.layout()


def reduces_in_pairs_what_the_other_pair_has():
    """A right program: ranks 2, 3 begin with the result of ranks 0, 1, by chance. Ranks 0, 2 and 1, 3 then add up."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    x = torch.tensor([0.5, 0.25]) * (1 + rank() // 2)
    if rank() > 1:
        dist.recv(torch.zeros(1), rank() - 2)  # the other pair is done
    dist.all_reduce(x, group=mesh["column"].get_group())
    if rank() < 2:
        dist.send(torch.zeros(1), rank() + 2)
    dist.all_reduce(x, group=mesh["row"].get_group())
    return x


def test_equal_values_of_ranks_that_never_had_the_result(local_world) -> None:
    table = str(local_world(4, replay=True).run(reduces_in_pairs_what_the_other_pair_has).layout())
    assert SAME in table and "twice" not in table


def reduces_the_same_along_both_axes() -> None:
    """A right program with equal data on all ranks: the sum over a row, and then over a column, of a mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    x = torch.tensor([0.5, 0.25])
    for axis in ("column", "row"):
        dist.all_reduce(x, group=mesh[axis].get_group())


def test_a_sum_over_one_axis_and_then_over_the_other(local_world) -> None:
    table = str(local_world(4, replay=True).run(reduces_the_same_along_both_axes).layout())
    assert SAME in table and "twice" not in table


def reduces_zeros_of_two_layers() -> None:
    for _ in range(2):
        dist.all_reduce(torch.zeros(3))  # such as the gradients of LoRA's first matrices in the first step


def test_equal_whole_numbers_are_not_taken_for_an_earlier_result(local_world) -> None:
    table = str(local_world(2, replay=True).run(reduces_zeros_of_two_layers).layout())
    assert SAME in table and "twice" not in table


def gathers_shards_in_pairs():
    """Hybrid sharding: ranks 0, 2 hold one half of the weights, ranks 1, 3 the other half."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    shard = fully_shard(nn.Linear(4, 2, bias=False), mesh=mesh)
    shard(batch()).sum().backward()
    return shard.weight.to_local().detach()


def test_shards_of_groups_side_by_side_do_not_differ(local_world) -> None:
    assert rows(local_world(4, replay=True).run(gathers_shards_in_pairs))[-1] == ("returned", "", "", "Shard")


def returns_numbers():
    names = {"short": f"part {rank()}", "long": "part" * 9 + str(rank())}
    return {"scale": 1024.0 / (1 + rank()), "steps": 3, "seen": [names]}


def test_numbers_that_differ_are_listed(local_world) -> None:
    assert rows(local_world(2).run(returns_numbers))[:3] == [
        ("returned", "scale", "", "Varying  ← differs: rank 0: 1024.0 | rank 1: 512.0"),
        ("returned", "seen.0.short", "", "Varying  ← differs: rank 0: 'part 0' | rank 1: 'part 1'"),
        ("returned", "seen.0.long", "", "Varying  ← differs: rank 0 | rank 1"),
    ]


def overflows(value=float("inf"), dtype=torch.float32, op=dist.ReduceOp.SUM) -> None:
    weight = torch.ones(2, dtype=dtype)
    for step in range(4):
        gradient = torch.tensor([1.0, value if (rank(), step) == (1, 2) else 2.0], dtype=dtype)
        dist.all_reduce(gradient, op)
        weight -= gradient
        dist.broadcast(weight, 0)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (float("inf"), torch.float32),
        (-float("inf"), torch.bfloat16),
        (float("nan"), torch.bfloat16),
        (float("inf"), torch.float16),
        (float("nan"), torch.float64),
    ],
)
@pytest.mark.filterwarnings("ignore::course_lib.CourseWarning")
def test_the_first_value_that_is_not_finite(local_world, value, dtype) -> None:
    run = local_world(2, replay=True).run(overflows, value, dtype)
    (warning,) = run.warnings
    assert re.sub(r"line \d+", "line _", warning) == (
        "rank 1 brought a value that is not finite (infinity or NaN) to all_reduce #3, in gradient, at test_layout.py "
        "line _, in overflows:  dist.all_reduce(gradient, op), with step = 2. No earlier call had one. Next: "
        "look at how rank 1 computed it, or whether it was filled at all after `torch.empty` or `to_empty`. An "
        "attention mask contains such values on purpose, and a loss scaler expects them."
    )


def test_infinity_in_a_maximum_and_finite_extremes_are_no_finding(local_world) -> None:
    world = local_world(2, replay=True)
    assert world.run(overflows, -float("inf"), op=dist.ReduceOp.MAX).warnings == ()
    assert world.run(overflows, torch.finfo(torch.bfloat16).max, torch.bfloat16).warnings == ()


def shards():
    flat = torch.arange(4.0) + rank()
    shard, whole, rows = torch.empty(2), torch.empty(4), torch.ones(2)
    dist.reduce_scatter_single(shard, flat)
    dist.all_gather_single(whole, shard)
    dist.broadcast(rows, src=1)
    return {"shard": shard, "flat": flat, "whole": whole, "rank": torch.tensor(rank())}


def test_layouts_follow_from_the_calls(local_world) -> None:
    assert rows(local_world(2, replay=True).run(shards))[:2] == [
        ("reduce_scatter_single #1", "flat", "Partial", "Shard"),
        ("all_gather_single #1", "shard", "Shard", "Replicate"),
    ]
    assert rows(local_world(2, replay=True).run(shards))[3:] == [
        ("returned", "shard", "", "Shard"),
        ("returned", "flat", "", "Partial"),
        ("returned", "whole", "", "Replicate"),
        ("returned", "rank", "", "Varying    ← differs: rank 0 | rank 1"),
    ]


def test_results_are_compared_without_a_replay_too(local_world) -> None:
    def program(*, calls: bool = False):
        if calls:
            dist.all_reduce(torch.ones(1))
        return [torch.ones(3, 2).t(), {"mine": torch.tensor(rank()), "sparse": SPARSE}]

    text = str(local_world(2).run(program).layout())
    assert "sparse" not in text  # it is not compared
    assert "returned  0               Replicate\n" in text and "1.mine          Varying" in text
    assert "replay" not in text  # there are no calls to compare
    assert str(local_world(2).run(program, calls=True).layout()).endswith("make the world with World(…, replay=True).")


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
def test_engines_have_no_arrow(local_world, program) -> None:
    table = str(local_world(2, replay=True).run(program).layout())
    assert "Shard" in table and "Varying" not in table and "←" not in table


@pytest.mark.filterwarnings("ignore::course_lib.CourseWarning")
def test_equal_nan_on_every_rank_is_no_second_reduction(local_world) -> None:
    def program() -> None:
        for _ in range(2):
            dist.all_reduce(torch.full((3,), float("nan")))

    assert "twice" not in local_world(2, replay=True).run(program).layout()
