"""A dry run: one rank out of many, with tensors that have a size and no memory."""

import copy
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from course_lib import World, mark, zero
from course_lib.errors import CourseError
from course_lib.meter import Communication, MemoryReport
from course_lib.world import RankError
from course_lib.world.dryrun.fake_tensors import KNOWN_NUMEL
from tests.world.functional import all_gather, reduce_scatter

RANKS = 4


def dry(fn: Callable[..., Any], *args: Any, world_size: int = 64, rank: int = 63, **options: Any) -> Any:
    return World(world_size, backend="dryrun", rank=rank, **options).run(fn, *args)


# -- as measured in a simulated world ----------------------------------------------------------------------------


def training(name: str) -> None:
    """Two steps of a small model that does not divide by the number of ranks."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 13, dropout=0.1, batch_first=True), nn.Linear(8, 7), nn.Linear(7, 3)
    )
    if name == "FSDP2":
        for part in (*model, model):
            fully_shard(part)
    elif name in ("DDP", "ZeroRedundancyOptimizer", "ShardedOptimizer"):
        model = DistributedDataParallel(model)
    else:
        model = getattr(zero, name)(model, torch.optim.Adam, lr=1e-3)
    sharded = {"ZeroRedundancyOptimizer": ZeroRedundancyOptimizer, "ShardedOptimizer": zero.ShardedOptimizer}
    optimizer: Any = model
    if name in sharded:
        optimizer = sharded[name](model.parameters(), torch.optim.Adam, lr=1e-3)
    elif not hasattr(zero, name):
        optimizer = torch.optim.Adam(model.parameters())
    for step in range(2):
        model(torch.randn(2, 5, 8)).square().mean().backward()
        mark(f"backward {step}")
        optimizer.step()
        mark(f"step {step}")
        optimizer.zero_grad()


def told(memory: MemoryReport, comm: Communication) -> list[Any]:
    """All bytes of a report, and all that was sent."""
    moments = [memory, *memory.marks.values()]
    return [
        [(m.current_bytes, m.peak_bytes, dict(m.by_category)) for m in moments],
        memory.at_peak and dict(memory.at_peak.by_category),
        [(call.op, call.total_bytes, call.number, call.sent, call.root) for call in comm.calls],
    ]


ENGINES = ["DataParallel", "Stage1", "Stage2", "Stage3", "ShardedOptimizer", "DDP", "ZeroRedundancyOptimizer", "FSDP2"]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.filterwarnings("ignore:.*returned a view tensor")
def test_each_ranks_bytes_are_those_of_a_simulated_world(name: str) -> None:
    whole = World(RANKS).run(training, name)
    for rank in (0, RANKS - 1):
        run = dry(training, name, world_size=RANKS, rank=rank)
        assert told(run.memory[rank], run.comm[rank]) == told(whole.memory[rank], whole.comm[rank])


def functional() -> tuple[Tensor, ...]:
    """What the functional collectives give is memory that they make; DTensor is built on them."""
    group = dist.group.WORLD
    summed = funcol.wait_tensor(funcol.all_reduce(torch.ones(6), "sum", group))
    scattered = funcol.wait_tensor(reduce_scatter(torch.ones(8), "sum", 0, group))
    gathered = funcol.wait_tensor(all_gather(scattered, 0, group))
    rows = distribute_tensor(torch.ones(10, 6), DeviceMesh("cpu", range(RANKS)), [Shard(0)])
    return summed, scattered, gathered, rows.full_tensor()


def test_functional_collectives_and_dtensors_hold_what_they_hold_in_a_simulated_world() -> None:
    whole = World(RANKS).run(functional)
    for rank in (0, RANKS - 1):
        run = dry(functional, world_size=RANKS, rank=rank)
        assert told(run.memory[rank], run.comm[rank]) == told(whole.memory[rank], whole.comm[rank])


def in_the_background() -> None:
    """Start calls of temporary tensors, and wait for all of them."""
    started = []
    for _ in range(4):
        shard = torch.empty(10)
        started.append((dist.reduce_scatter_single(shard, torch.ones(10 * RANKS), async_op=True), shard))
    mark("started")
    for work, _ in started:
        work.wait()


def test_the_tensors_of_asynchronous_calls_count_until_the_wait_as_in_a_simulated_world() -> None:
    whole, run = World(RANKS).run(in_the_background), dry(in_the_background, world_size=RANKS, rank=0)
    assert told(run.memory[0], run.comm[0]) == told(whole.memory[0], whole.comm[0])
    assert run.memory[0].marks["started"].current_bytes == run.memory[0].peak_bytes == 4 * 4 * (10 + 10 * RANKS)
    assert run.memory[0].current_bytes == 4 * 4 * 10


# -- at scale ----------------------------------------------------------------------------------------------------


def large_step(name: str, dtype: torch.dtype) -> int:
    """A step of 7.5 B parameters: how many there are, exactly."""
    model = nn.Sequential(*(nn.Linear(19_364, 19_364) for _ in range(20))).to(dtype)
    numel = sum(param.numel() for param in model.parameters())
    engine = getattr(zero, name)(model, torch.optim.Adam)
    engine(torch.randn(1, 19_364, dtype=dtype)).sum().backward()
    engine.step()
    return numel


@pytest.mark.parametrize(
    ("name", "dtype", "ranks", "psi_bytes", "gigabytes", "sent_psi_bytes"),
    [
        ("DataParallel", torch.float32, 64, 16, 120, 2 * 4),  # 4 + 4 + 8; the paper's 2 + 2 + 12 comes to the same
        ("Stage1", torch.bfloat16, 64, 2 + 2 + 12 / 64, 31.4, 4 + 2),
        ("Stage2", torch.bfloat16, 64, 2 + 4 / 64 + 12 / 64, 16.9, 4 + 2),  # the paper's 16.6 has gradients in fp16
        ("Stage3", torch.bfloat16, 64, 16 / 64, 1.9, 4 + 2 * 2),
        ("Stage3", torch.bfloat16, 16_384, 16 / 16_384, 0.0, 4 + 2 * 2),
    ],
)
def test_7_5_billion_parameters_take_and_send_what_the_formulas_say(
    name: str, dtype: torch.dtype, ranks: int, psi_bytes: float, gigabytes: float, sent_psi_bytes: int
) -> None:
    """Ψ(N-1)/N elements are sent twice, and three times in stage 3: gradients in fp32, parameters in their dtype."""
    run = dry(large_step, name, dtype, world_size=ranks, rank=0)
    held, psi = run.memory[0].by_category, run[0]
    states = held["parameters"] + held["gradients"] + held["optimizer"]
    assert states == pytest.approx(psi_bytes * psi, rel=1e-3)
    assert states / 1e9 == pytest.approx(gigabytes, abs=0.06)
    sent = sum(call.sent for call in run.comm[0].calls if call.op != "broadcast")  # which the engine begins with
    assert float(sent) == pytest.approx(sent_psi_bytes * psi * (ranks - 1) / ranks, rel=1e-3)


# -- no numbers --------------------------------------------------------------------------------------------------


def item() -> float:
    return torch.randn(3).sum().item()


def branch() -> None:
    if torch.randn(3).sum() > 0:
        print("positive")


def formatted() -> str:
    return f"{torch.randn(3).sum():.3f}"


def to_numpy() -> Any:
    return torch.randn(3).numpy()


def masked() -> Tensor:
    x = torch.randn(3)
    return x[x > 0]


def copied() -> bytes:
    return pickle.dumps(torch.randn(3))


def compared() -> None:
    torch.testing.assert_close(torch.randn(3), torch.randn(3))


def gathered_objects() -> None:
    dist.all_gather_object([None] * 64, "an object")


def summed() -> int:
    count = torch.tensor([3])
    dist.all_reduce(count)
    return int(count)


@pytest.mark.parametrize(
    ("fn", "line", "asked"),
    [
        (item, ".item()", "item()"),
        (branch, "if torch.randn", "an `if`"),
        (formatted, ":.3f", "float()"),
        (to_numpy, ".numpy()", "NumPy"),
        (masked, "x[x > 0]", "shape of its result"),
        (copied, "pickle.dumps", "sending a tensor"),
        (compared, "assert_close", "item()"),
        (gathered_objects, "all_gather_object", "a collective of objects"),
        (summed, "int(count)", "int()"),
    ],
)
def test_a_line_that_asks_for_a_number_is_named(fn: Callable[[], Any], line: str, asked: str) -> None:
    with pytest.raises(RankError) as caught:
        dry(fn)
    headline, where, *_ = str(caught.value).splitlines()
    assert headline.startswith("the dry run of rank 63 of 64: a dry run has no numbers") and asked in headline
    assert "test_dryrun.py line" in where and line in where


class Samples(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return KNOWN_NUMEL + 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(8), index


def test_a_loader_shuffles() -> None:
    def program() -> list[Any]:
        data = Samples()
        seen: list[Any] = []
        for sampler in (None, DistributedSampler(data)):
            options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True} if sampler is None else {}
            loader = DataLoader(data, batch_size=2, shuffle=sampler is None, sampler=sampler, **options)
            batch, indices = next(iter(loader))
            seen += [tuple(batch.shape), indices.tolist()]
        return seen

    shape, first, other_shape, second = dry(program)[63]
    assert shape == other_shape == (2, 8)
    assert len({*first, *second, 0, 1}) == 6


def test_what_needs_no_computing_is_known() -> None:
    def known() -> tuple[Any, ...]:
        return torch.tensor(3.0).item(), torch.arange(3).tolist(), dist.get_rank(), dist.get_world_size()

    assert dry(known)[63] == (3.0, [0, 1, 2], 63, 64)


def test_storages_have_addresses_that_tell_them_apart() -> None:
    def addresses() -> tuple[bool, bool]:
        a, b = torch.randn(4), torch.randn(4)
        same = a.untyped_storage().data_ptr() == a[1:].untyped_storage().data_ptr()
        return same and a.data_ptr() + 4 == a[1:].data_ptr(), a.data_ptr() == b.data_ptr()

    assert dry(addresses)[63] == (True, False)


def test_modules_can_be_copied() -> None:
    def parameters() -> list[bool]:
        layer = nn.Linear(3, 3)
        return [isinstance(p, nn.Parameter) and p is not layer.weight for p in copy.deepcopy(layer).parameters()]

    assert dry(parameters)[63] == [True, True]


# -- what comes of it --------------------------------------------------------------------------------------------


def test_only_the_rank_that_ran_is_told_of() -> None:
    run = dry(lambda: print("here") or dist.get_rank())
    assert (run[63], run[-1], list(run), len(run), run.output[63]) == (63, 63, [63], 1, "here\n")
    with pytest.raises(CourseError, match=r"run.memory\[0\]: a dry run runs one rank, here rank 63 of 64"):
        run.memory[0]
    with pytest.raises(CourseError, match="takes all ranks"):
        run.comm_matrix  # noqa: B018
    with pytest.raises(CourseError, match="computes nothing"):
        run.timeline  # noqa: B018


def test_groups_have_their_members_only() -> None:
    def within() -> None:
        dist.all_reduce(torch.ones(6), group=dist.new_group([61, 62, 63], backend="gloo"))

    def outside() -> None:
        dist.all_reduce(torch.ones(6), group=dist.new_group([0, 1]))

    assert dry(within).comm[63].sent_bytes == 2 * 24 * 2 // 3
    with pytest.raises(RankError, match="rank 63 of 64 called all_reduce on a group that it does not belong to"):
        dry(outside)


def test_a_stop_comes_in_the_learners_code_alone() -> None:
    class Slow(Exception):
        def __str__(self) -> str:
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                pass
            return "slow"

    def program() -> None:
        raise Slow

    with pytest.raises(RankError) as caught:  # and no thread ends with an exception: here, that would be an error
        World(2, backend="dryrun", timeout=0.2).run(program)
    assert caught.value.kind == "timeout"


def test_the_timeout_ends_it_and_the_next_run_is_right() -> None:
    def endless() -> None:
        while True:
            pass

    started = time.perf_counter()
    with pytest.raises(RankError, match=r"stopped after its time limit of 0\.5 s") as caught:
        dry(endless, timeout=0.5)
    assert time.perf_counter() - started < 5
    assert caught.value.kind == "timeout"
    assert list(World(2).run(lambda: torch.ones(2).sum().item())) == [2.0, 2.0]
    assert torch.ones(2).sum().item() == 2.0


@pytest.mark.parametrize("rank", [64, -1, 1.5])
def test_a_rank_that_is_not_there_is_refused(rank: Any) -> None:
    with pytest.raises(CourseError, match="there is no such rank"):
        World(64, backend="dryrun", rank=rank)


def test_tensors_that_come_back_have_a_shape_and_outlive_the_run() -> None:
    run = World(4, backend="dryrun").run(lambda: {"weight": torch.ones(3, 2).bfloat16().T})

    weight = copy.deepcopy(run[0]["weight"])
    assert (weight.device.type, weight.shape, weight.stride(), weight.dtype) == ("meta", (2, 3), (1, 2), torch.bfloat16)
