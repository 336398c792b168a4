"""What torch does for a whole process, where several ranks share one."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from course_lib import RankError, World


def train(group: dist.ProcessGroup | None = None) -> None:
    model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
    model(torch.ones(1, 2)).sum().backward()


def profiled() -> bool:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train()
        with record_function("sent"):
            dist.barrier()
    return "sent" in {event.key for event in profiler.key_averages()}


def test_two_simulated_ranks_cannot_be_profiled_at_once_and_the_next_one_can():
    world = World(3)
    with pytest.raises(RankError, match=r"CourseError: torch's profiler is running on rank \d, and simulated ranks"):
        world.run(profiled)

    def profile_one():
        if dist.get_rank() == 1:
            return profiled()
        train()
        dist.barrier()

    assert list(world.run(profile_one)) == [None, True, None]


def test_a_refused_rank_does_not_stop_the_profiler_of_another():
    def profile_with_a_schedule():
        with profile(schedule=schedule(wait=1, warmup=1, active=1), acc_events=True) as profiler:
            for _ in range(8):
                profiler.step()

    with pytest.raises(RankError, match="torch's profiler is running on rank"):
        World(3).run(profile_with_a_schedule)
    assert list(World(1).run(profiled)) == [True]


def test_a_profiler_that_a_rank_never_stops_ends_with_the_rank(capfd):
    World(2).run(lambda: profile(activities=[ProfilerActivity.CPU]).start() if dist.get_rank() == 1 else None)
    assert list(World(1).run(profiled)) == [True]
    assert "Leaked callback" not in capfd.readouterr().err


def test_a_rank_cannot_be_profiled_within_a_profile_of_the_kernel():
    with (
        profile(activities=[ProfilerActivity.CPU]),
        pytest.raises(RankError, match="torch's profiler is running on MainThread, and simulated ranks share"),
    ):
        World(1).run(profiled)


@pytest.mark.slow
def test_processes_are_profiled_at_once():
    assert list(World(2, backend="processes").run(profiled)) == [True, True]


@pytest.fixture
def own_debug_level() -> Iterator[None]:
    level = dist.get_debug_level()
    yield
    dist.set_debug_level(level)


@pytest.mark.parametrize("backend", ["simulated", pytest.param("processes", marks=pytest.mark.slow)])
def test_ddp_trains_at_torchs_debug_level_detail(backend, own_debug_level):
    def train_on_a_new_group():
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        train(dist.new_group())

    World(2, backend=backend).run(train_on_a_new_group)


def test_the_message_on_unused_parameters_says_how_to_read_their_names(own_debug_level):
    class Half(torch.nn.ModuleDict):
        def forward(self, x):
            return self["used"](x)

    def train_half(level):
        dist.set_debug_level(level)
        model = DistributedDataParallel(Half({"used": torch.nn.Linear(2, 2), "unused": torch.nn.Linear(2, 2)}))
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(RankError, match=r"Next: .*call dist\.set_debug_level\(dist\.DebugLevel\.INFO\)"):
        World(2).run(train_half, dist.DebugLevel.OFF)
    with pytest.raises(RankError, match=r"did not receive grad for rank \d: unused\.bias, unused\.weight"):
        World(2).run(train_half, dist.DebugLevel.INFO)


@pytest.mark.parametrize(
    "trace", [lambda *args: torch.export.draft_export(*args), lambda *args: torch.jit.trace(*args)]
)
def test_other_tracers_are_refused_too(trace):
    with pytest.raises(RankError, match="changes settings of the whole process while it traces"):
        World(2).run(trace, torch.nn.Linear(2, 2), (torch.ones(1, 2),))


def test_export_is_refused_on_simulated_ranks_and_ddp_runs_afterwards():
    world = World(2)
    with pytest.raises(RankError, match=r"CourseError: torch\.export changes .* Give each rank a process: World"):
        world.run(lambda: torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)))
    world.run(train)


@pytest.mark.slow
def test_pipelines_are_cut_by_export_and_refused_with_its_reason():
    from torch.distributed.pipelining import SplitPoint, pipeline

    def cut():
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        return pipeline(model, (torch.ones(1, 2),), split_spec={"1": SplitPoint.BEGINNING}).num_stages

    with pytest.raises(RankError, match=r"CourseError: torch\.export changes .*\n.* in cut:  return pipeline\(model"):
        World(2).run(cut)
