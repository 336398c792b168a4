"""What each engine sends: which collectives, in which order, and how many bytes, exactly."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, AdamW

from course_lib import zero
from tests.zero.models import batch, loss_of, make, train, world


class Even(nn.Module):
    """Three layers of 12 parameters, which 2 and 3 ranks share without padding."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 4, 3, 4)
        self.layers = nn.Sequential(*(nn.Linear(widths[i], widths[i + 1], bias=False) for i in range(3)))

    def forward(self, x):
        return self.layers(x[:, :3])


def step_of(engine, dtype=torch.float32, steps=1, **options):
    """Steps of an engine on `Even`, and nothing but the steps: the last so many calls are theirs."""

    def rank() -> None:
        made = getattr(zero, engine)(Even().to(dtype), SGD, lr=0.1, **options)
        dist.barrier()
        for step in range(steps):
            loss_of(made, batch(step, dist.get_rank()).to(dtype)).backward()
            made.step()
            made.zero_grad()

    return rank


def since_barrier(run, rank=0):
    calls = run.comm[rank].calls
    start = max(index for index, call in enumerate(calls) if call.op == "barrier")
    return calls[start + 1 :]


def described(calls):
    return [(call.op, call.total_bytes) for call in calls]


@pytest.mark.parametrize("world_size", [1, 3])
def test_data_parallel_all_reduces_each_bucket(world_size) -> None:
    run = world(world_size).run(step_of("DataParallel", bucket_bytes=48))
    assert described(since_barrier(run)) == [("all_reduce", 48)] * 3
    assert sum(call.sent for call in since_barrier(run)) == 2 * 4 * 36 * (world_size - 1) / world_size


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("stage", ["Stage1", "Stage2"])
def test_stages_1_and_2_reduce_scatter_and_all_gather_each_bucket(stage, world_size) -> None:
    run = world(world_size).run(step_of(stage, bucket_bytes=48))
    assert described(since_barrier(run)) == [("reduce_scatter", 48)] * 3 + [("all_gather", 48)] * 3
    assert sum(call.sent for call in since_barrier(run)) == 2 * 4 * 36 * (world_size - 1) / world_size


@pytest.mark.parametrize("prefetch", [0, 1, 9])
@pytest.mark.parametrize("world_size", [1, 3])
def test_stage_3_gathers_twice_and_reduces_once(world_size, prefetch) -> None:
    run = world(world_size).run(step_of("Stage3", prefetch=prefetch))
    backward = {
        0: ["all_gather", "reduce_scatter"] * 3,
        1: ["all_gather", "all_gather", "reduce_scatter", "all_gather", "reduce_scatter", "reduce_scatter"],
    }.get(prefetch, ["all_gather"] * 3 + ["reduce_scatter"] * 3)
    assert described(since_barrier(run)) == [("all_gather", 48)] * 3 + [(op, 48) for op in backward]
    assert sum(call.sent for call in since_barrier(run)) == 3 * 4 * 36 * (world_size - 1) / world_size


@pytest.mark.parametrize(("engine", "factor"), [("DataParallel", 8), ("Stage1", 6), ("Stage2", 6), ("Stage3", 8)])
def test_in_bf16_parameters_travel_in_2_bytes_and_gradients_in_4(engine, factor) -> None:
    run = world(2).run(step_of(engine, torch.bfloat16))
    assert sum(call.sent for call in since_barrier(run)) == factor * 36 / 2


@pytest.mark.parametrize(
    ("engine", "ops"),
    [
        ("DataParallel", ["all_reduce"]),
        ("Stage1", ["reduce_scatter", "all_gather"]),
        ("Stage2", ["reduce_scatter"] * 3 + ["all_gather"]),
        ("Stage3", (["all_gather"] * 6 + ["reduce_scatter"] * 3) * 3),
    ],
)
def test_three_micro_batches(engine, ops) -> None:
    """Data parallel and stage 1 wait for the last; stages 2 and 3, which keep shards only, reduce each."""

    def rank() -> None:
        made = getattr(zero, engine)(Even(), SGD, lr=0.1, **({} if engine == "Stage3" else {"bucket_bytes": 144}))
        dist.barrier()
        train(made, dist.get_rank(), range(1), micro_batches=3)

    run = world(2).run(rank)
    assert sorted(call.op for call in since_barrier(run)) == sorted(ops)


@pytest.mark.parametrize("engine", ["DataParallel", "Stage1", "Stage2", "Stage3"])
def test_gradients_travel_while_backward_computes_except_in_stage_1(engine) -> None:
    def rank() -> None:
        small = {} if engine == "Stage3" else {"bucket_bytes": 4 * 256 * 256}
        made = getattr(zero, engine)(nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))), SGD, lr=0.1, **small)
        for _ in range(3):
            made(torch.ones(64, 256)).sum().backward()
            made.step()
            made.zero_grad()

    run = world(2).run(rank)
    reductions = [call for comm in run.comm for call in comm.calls if call.op in ("all_reduce", "reduce_scatter")]
    meanwhile = [call for call in reductions if call.matched < call.waited_from]
    assert len(reductions) == 2 * 3 * 8  # on each rank, in each step, one for each layer
    assert bool(meanwhile) == (engine != "Stage1")


def test_clipping_adds_one_number() -> None:
    def rank(engine) -> None:
        made = getattr(zero, engine)(Even(), SGD, lr=0.1)
        dist.barrier()
        train(made, dist.get_rank(), range(1), max_norm=1.0)

    for engine, more in {"DataParallel": [], "Stage1": [4], "Stage2": [4], "Stage3": [4]}.items():
        calls = since_barrier(world(2).run(rank, engine))
        assert [call.total_bytes for call in calls if call.total_bytes < 48] == more


def test_evaluation_gathers_and_nothing_else() -> None:
    def rank(engine) -> None:
        made = getattr(zero, engine)(Even(), SGD, lr=0.1).eval()
        dist.barrier()
        with torch.no_grad():
            made(batch(0, 0))

    for engine, ops in {"DataParallel": [], "Stage1": [], "Stage2": [], "Stage3": ["all_gather"] * 3}.items():
        assert [call.op for call in since_barrier(world(2).run(rank, engine))] == ops


@pytest.mark.parametrize("engine", ["DataParallel", "Stage1", "Stage2", "Stage3"])
def test_ranks_that_go_different_ways_call_the_same(engine) -> None:
    """Which parameters a rank uses depends on its data; what it sends does not."""
    options = {} if engine == "Stage3" else {"bucket_bytes": 30}

    def rank():
        model, used = make("branches"), []
        for number, branch in enumerate(model.branches):
            branch.register_forward_hook(lambda *_, number=number: used.append(number))
        made = getattr(zero, engine)(model, AdamW, find_unused_parameters=True, **options)
        for step in range(4):
            made.zero_grad()
            loss_of(made, batch(step, dist.get_rank(), size=1)).backward()
            made.step()
        return used

    run = world(4).run(rank)
    assert any(used != run[0] for used in run), "every rank used the same in every step"
    calls = [[(call.op, call.total_bytes) for call in rank.calls] for rank in run.comm]
    assert calls == [calls[0]] * 4


@pytest.mark.parametrize(("stage", "passes"), [("Stage1", 2), ("Stage2", 2), ("Stage3", 3)])
def test_padding_is_sent_too(stage, passes) -> None:
    def rank() -> None:
        engine = getattr(zero, stage)(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), SGD)  # 66 parameters
        dist.barrier()
        engine(torch.ones(2, 5)).sum().backward()
        engine.step()

    calls = since_barrier(world(4).run(rank))
    assert sum(call.sent for call in calls) == passes * 4 * 68 * 3 / 4  # padded to a multiple of 4
