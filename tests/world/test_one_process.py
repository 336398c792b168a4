"""What torch does for a whole process, where several ranks share one."""

import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from course_lib import CourseError, RankError, World


def train(group: dist.ProcessGroup | None = None) -> None:
    model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
    model(torch.ones(1, 2)).sum().backward()


def profiled() -> bool:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train()
        with record_function("sent"):
            dist.barrier()
    return "sent" in {event.key for event in profiler.key_averages()}


def profiled_by_a_schedule() -> None:
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=1)) as profiler:
        for _ in range(3):
            train()
            profiler.step()


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("function", [profiled, profiled_by_a_schedule])
def test_simulated_ranks_cannot_be_profiled_and_the_kernel_can(function, world_size) -> None:
    world = World(world_size)
    with pytest.raises(RankError, match=r"CourseError: torch's profiler changes .* Give each rank a process: World"):
        world.run(function)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        world.run(train)
        torch.ones(1).sum()
    assert "aten::sum" in {event.key for event in profiler.key_averages()}


@pytest.mark.slow
def test_processes_are_profiled_at_once() -> None:
    assert list(World(2, backend="processes").run(profiled)) == [True, True]


@pytest.fixture
def own_debug_level() -> Iterator[None]:
    level = dist.get_debug_level()
    yield
    dist.set_debug_level(level)


@pytest.mark.parametrize("backend", ["simulated", pytest.param("processes", marks=pytest.mark.slow)])
def test_ddp_trains_at_torchs_debug_level_detail(backend, own_debug_level) -> None:
    def train_on_a_new_group() -> None:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        train(dist.new_group())

    World(2, backend=backend).run(train_on_a_new_group)


def test_the_message_on_unused_parameters_says_how_to_read_their_names(own_debug_level) -> None:
    class Half(torch.nn.ModuleDict):
        def forward(self, x):
            return self["used"](x)

    def train_half(level) -> None:
        dist.set_debug_level(level)
        model = DistributedDataParallel(Half({"used": torch.nn.Linear(2, 2), "unused": torch.nn.Linear(2, 2)}))
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(RankError, match=r"Next: .*call dist\.set_debug_level\(dist\.DebugLevel\.INFO\)"):
        World(2).run(train_half, dist.DebugLevel.OFF)
    with pytest.raises(RankError, match=r"did not receive grad for rank \d: unused\.bias, unused\.weight"):
        World(2).run(train_half, dist.DebugLevel.INFO)


@pytest.mark.parametrize(
    "trace",
    [
        lambda *args: torch.export.draft_export(*args),
        lambda *args: torch.jit.trace(*args),
        lambda model, _: torch.fx.symbolic_trace(model),
    ],
)
def test_other_tracers_are_refused_too(trace) -> None:
    with pytest.raises(RankError, match="changes the state of the whole process"):
        World(2).run(trace, torch.nn.Linear(2, 2), (torch.ones(1, 2),))


def test_export_is_refused_on_simulated_ranks_and_ddp_runs_afterwards() -> None:
    world = World(2)
    with pytest.raises(RankError, match=r"CourseError: torch\.export changes .* Give each rank a process: World"):
        world.run(lambda: torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)))
    world.run(train)


class Scripted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_simulated_ranks_script_modules_of_the_same_classes() -> None:
    def scripted() -> list[int]:
        class Pair:
            def __init__(self, value: int) -> None:
                self.value = value

        torch.jit.script(Pair)
        model = torch.jit.script(Scripted())
        dist.all_reduce(gradient := torch.autograd.grad(model(torch.ones(1, 2)).sum(), model.layers[8].weight)[0])
        return list(gradient.shape)

    assert list(World(8).run(scripted)) == [[2, 2]] * 8


def test_one_rank_and_the_kernel_trace_with_fx() -> None:
    def nodes() -> int:
        return len(torch.fx.symbolic_trace(torch.nn.Linear(2, 2)).graph.nodes)

    assert World(1).run(nodes)[0] == nodes()


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


DEFINITIONS = {
    "custom_op": lambda: torch.library.custom_op("of_a_rank::twice", twice, mutates_args=()),
    "define": lambda: torch.library.define("of_a_rank::twice", "(Tensor x) -> Tensor"),
    "Library": lambda: torch.library.Library("of_a_rank", "DEF"),
}


@pytest.mark.parametrize("define", DEFINITIONS.values(), ids=DEFINITIONS)
def test_new_operators_are_refused_on_simulated_ranks(define) -> None:
    with pytest.raises(RankError, match=r"^both ranks raised CourseError: a new operator .* Define it in a file, and"):
        World(2).run(define)


def test_an_imported_file_may_define_operators_and_one_rank_too(tmp_path, monkeypatch) -> None:
    (tmp_path / "file_of_operators.py").write_text(OPERATORS)
    monkeypatch.syspath_prepend(tmp_path)

    def import_and_call() -> list[float]:
        import file_of_operators

        doubled = torch.vmap(twice)(torch.ones(2))  # torch's own library
        return torch.ops.of_a_file.half(file_of_operators.twice(doubled)).tolist()

    assert list(World(2).run(import_and_call)) == [[2.0, 2.0]] * 2
    operator = sys.modules["file_of_operators"].twice
    for backend in ("simulated", "processes"):
        assert list(World(2, backend=backend).run(lambda: operator(torch.ones(1)).item())) == [2, 2]
    for _ in range(2):
        assert World(1).run(lambda: DEFINITIONS["custom_op"]()(torch.ones(1)).item())[0] == 2


OPERATORS = """
import torch

@torch.library.custom_op("of_a_file::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

library = torch.library.Library("of_a_file", "FRAGMENT")
library.define("half(Tensor x) -> Tensor")
library.impl("half", lambda x: x / 2, "CPU")
"""


def test_the_refusal_of_an_operator_of_the_notebook_says_where_to_define_it() -> None:
    operator = torch.library.custom_op("of_a_notebook::twice", twice, mutates_args=())
    with pytest.raises(CourseError, match=r"'operator', a CustomOpDef, cannot .* Define that operator in a file, and"):
        World(2).run(lambda: operator(torch.ones(1)))


@pytest.mark.slow
def test_pipelines_are_cut_by_export_and_refused_with_its_reason() -> None:
    from torch.distributed.pipelining import SplitPoint, pipeline

    def cut():
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        return pipeline(model, (torch.ones(1, 2),), split_spec={"1": SplitPoint.BEGINNING}).num_stages

    with pytest.raises(RankError, match=r"CourseError: torch\.export changes .*\n.* in cut:  return pipeline\(model"):
        World(2).run(cut)
