"""Whether checks are fair: nothing is asked for that the cell does not say, and no time is blamed on a learner."""

import inspect
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from course_lib import RankError, World
from course_lib.exercises import Exercise, Verdict, get, names
from course_lib.exercises.checking import observe
from course_lib.lessons.cluster.data import shared_folder
from tests.exercises.sample import MEAN, changed, draw_mean, gathered, mean

NUMBERS = ("no", "one", "two", "three", "four")


def required(exercise: Exercise) -> list[str]:
    """Return the operations, and the numbers of calls, that the rules of an exercise ask for."""
    found: list[str] = []
    for rule in exercise.rules:
        asks = inspect.getclosurevars(rule).nonlocals
        match rule.__qualname__.partition(".")[0]:
            case "only_calls":
                found += asks["ops"]
            case "at_most":
                found += [asks["op"], NUMBERS[asks["count"]]]
            case "same_calls":
                found += re.findall("all_reduce|all_gather|reduce_scatter", inspect.getsource(exercise.reference))
    return found


@pytest.mark.parametrize("name", names())
def test_a_cell_names_what_its_rules_ask_for(name: str) -> None:
    exercise = get(name)

    cell = exercise.cell.lower().replace("-", "_")

    assert [word for word in required(exercise) if word not in cell] == []


@pytest.mark.parametrize("name", ["production.make_zero3", "zero2.reduce_during_backward"])
def test_a_task_names_the_calls_that_a_library_or_an_earlier_solution_makes(name: str) -> None:
    assert "reduce-scatter" in get(name).task


def test_wrong_numbers_are_reported_before_a_broken_rule() -> None:
    """On one rank the first part is the mean, and only the rule is broken."""

    def first_part(x: torch.Tensor) -> torch.Tensor:
        return gathered(x)[0]

    one_rank_first = changed(MEAN, draw=lambda rng, number: draw_mean(rng, number + 3))
    (finding,) = one_rank_first.check(first_part).findings

    assert "expected" in finding.observed and "called" not in finding.observed


def functional(x: torch.Tensor) -> torch.Tensor:
    from tests.world import functional as funcol

    assert dist.group.WORLD is not None
    whole: torch.Tensor = funcol.all_gather_autograd(x, 0, dist.group.WORLD)
    return whole


def redistributed(x: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    return whole.to_local(grad_placements=[Partial()])


@pytest.mark.slow
@pytest.mark.parametrize("solution", [functional, redistributed])
def test_a_call_is_judged_by_its_meaning(solution: Callable[..., Any]) -> None:
    assert repr(get("tensor.gather_sequence").check(solution)).startswith("✓")


# Time


def only(verdict: Verdict) -> str:
    (finding,) = verdict.findings
    return str(finding)


def limits(monkeypatch: pytest.MonkeyPatch, *, cpu: float, longest: float) -> None:
    monkeypatch.setattr(observe, "CPU_LIMIT", cpu)
    monkeypatch.setattr(observe, "TIME_LIMIT", longest)


@pytest.mark.slow
def test_a_solution_that_gets_no_cpu_time_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, cpu=1.0, longest=20.0)

    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(1.5)
        return mean(x)

    assert changed(MEAN, case_count=1).check(slow).status == "passed"


@pytest.mark.slow
def test_a_solution_that_only_waits_is_not_said_to_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, cpu=1.0, longest=2.0)  # one run in 100 collects all garbage, which takes 0.2 s of CPU time

    def sleeps(x: torch.Tensor) -> torch.Tensor:
        while True:
            time.sleep(0.1)

    verdict = MEAN.check(sleeps)
    assert "the machine is busy with other work, or your code waits" in only(verdict)
    assert "never ends" not in only(verdict) and "World(" not in only(verdict)


def test_what_stopped_a_run_is_read_from_the_cpu_time() -> None:
    with pytest.raises(RankError) as caught:
        World(1, timeout=0.2).run(lambda: time.sleep(1))
    stopped = [observe.Observation(error=caught.value, cpu_share=share) for share in (0.1, 0.9)]

    assert [one.waited for one in stopped] == [True, False]


# Tensors in flight


def divides_in_flight(bucket: list[nn.Parameter]) -> Callable[[], None]:
    grads = [param.grad if param.grad is not None else torch.zeros_like(param) for param in bucket]
    flat = torch.cat([grad.flatten() for grad in grads])
    work = dist.all_reduce(flat, async_op=True)
    flat /= dist.get_world_size()

    def finish() -> None:
        work.wait()
        for param, piece in zip(bucket, flat.split([param.numel() for param in bucket]), strict=True):
            param.grad = piece.view_as(param)

    return finish


def test_a_tensor_that_is_used_in_flight_is_reported_with_its_line() -> None:
    text = only(get("data_parallel.start_averaging").check(divides_in_flight))

    assert "used a tensor of all_reduce #1" in text and "flat /= dist.get_world_size()" in text


def test_exercises_that_start_calls_look_for_tensors_in_flight() -> None:
    starts = [name for name in names() if re.search(r"async_op=True|\.isend", inspect.getsource(get(name).reference))]

    assert starts and all(get(name).asynchronous for name in starts)


# Memory that nobody wrote


def padded_by_empty(params: list[nn.Parameter], world_size: int) -> torch.Tensor:
    numel, end = sum(param.numel() for param in params), 0
    flat_param = torch.empty(numel + -numel % world_size, dtype=params[0].dtype)
    for param in params:
        begin, end = end, end + param.numel()
        flat_param[begin:end] = param.detach().flatten()
        param.data = flat_param[begin:end].view_as(param)
    return flat_param


def resharded_by_new_empty(shards: list[torch.Tensor], numel: int, world_size: int) -> list[torch.Tensor]:
    flat = torch.cat(shards)[:numel]
    padded = torch.cat([flat, flat.new_empty(-numel % world_size)])
    return [shard.clone() for shard in padded.chunk(world_size)]


@pytest.mark.parametrize(
    ("name", "solution"), [("zero1.flatten", padded_by_empty), ("capstone.reshard", resharded_by_new_empty)]
)
def test_memory_that_nobody_wrote_never_passes_for_zeros(name: str, solution: Callable[..., Any]) -> None:
    for seed in range(3):
        assert "is nan, expected 0" in only(get(name).check(solution, seed=seed))
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operator_that_may_not_be_deterministic_does_not_warn() -> None:
    def puts(x: torch.Tensor) -> torch.Tensor:
        return mean(torch.zeros_like(x).put_(torch.arange(len(x)), x))

    assert MEAN.check(puts).status == "passed"


@pytest.mark.parametrize("backend", ["simulated", "processes"])
def test_memory_that_nobody_wrote_is_nan_on_every_rank(backend: str) -> None:
    exercise = changed(MEAN, draw=lambda rng, number: draw_mean(rng, 0), case_count=1)
    verdict = exercise.check(lambda x: mean(torch.empty_like(x)), World(2, backend=backend))

    assert "returned [nan, nan, nan" in only(verdict)


# What is right


FORMS: dict[str, Callable[[nn.Module], Any]] = {
    "flat": lambda model: model.state_dict(),
    "nested": lambda model: {"state": {"net": model.state_dict()}},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_is_read_in_whatever_form_it_has(form: str, tmp_path: Any) -> None:
    from torch.distributed import checkpoint as dcp

    from course_lib.lessons.cluster.data import Model, what_was_saved

    def saved(folder: str) -> bool:
        torch.manual_seed(0)
        model: Any = fully_shard(Model(4))
        dcp.save(FORMS[form](model), checkpoint_id=f"{folder}/epoch-0")
        found = what_was_saved(folder, 0)
        torch.manual_seed(0)
        return isinstance(found, dict) and all(
            torch.equal(found[name], value) for name, value in Model(4).state_dict().items()
        )

    assert list(World(2).run(saved, str(tmp_path))) == [True, True]


def test_a_shared_folder_is_removed_when_the_group_is_gone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    folder: Any = shared_folder()
    path = Path(folder.__enter__())
    assert path.exists()
    dist.destroy_process_group()

    folder.gen.close()  # as the garbage collector does for a rank that was stopped

    assert not path.exists()


@pytest.mark.slow
def test_an_optional_module_inside_a_unit_gets_right_gradients() -> None:
    """What the explanation of `cluster.optional_module` recommends."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.expert = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, use: bool) -> Any:
            x = self.first(x)
            return (x + self.expert(x) if use else x).square().mean()

    def inputs(rank: int) -> torch.Tensor:
        return torch.randn(2, 4, generator=torch.Generator().manual_seed(rank))

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model: Any = Model()
        fully_shard(model.first)
        fully_shard(model).set_reduce_scatter_unused_params(True)
        model(inputs(dist.get_rank()), dist.get_rank() == 1).backward()
        return [param.grad.full_tensor() for param in model.parameters()]

    if torch.__version__ < (2, 13):
        with pytest.raises(RankError, match=r"FSDP2 has this method since torch 2\.13"):
            World(2).run(gradients)
        return
    torch.manual_seed(0)
    alone = Model()
    (sum(alone(inputs(rank), rank == 1) for rank in range(2)) / 2).backward()
    for found in World(2).run(gradients):
        torch.testing.assert_close(found, [param.grad for param in alone.parameters()])


def test_a_large_gradient_that_is_finite_is_no_overflow() -> None:
    def unscale(shards: list[nn.Parameter], scale: float) -> bool:
        grads = [shard.grad for shard in shards if shard.grad is not None]
        for grad in grads:
            grad /= scale
        largest = torch.stack([torch.zeros(()), *(grad.abs().max() for grad in grads)]).max()
        fits = torch.tensor(float(largest <= torch.finfo(torch.float16).max))
        dist.all_reduce(fits, op=dist.ReduceOp.MIN)
        return bool(fits)

    assert get("precision.unscale").check(unscale).status == "failed"


def gathered_in_halves(unit: Any) -> Callable[[], None]:
    unit.flat = torch.empty(dist.get_world_size() * unit.shard.numel(), dtype=unit.shard.dtype)
    pieces, half = unit.flat.chunk(dist.get_world_size()), unit.shard.numel() // 2
    handles = [
        dist.all_gather([piece[part] for piece in pieces], unit.shard.detach()[part], async_op=True)
        for part in (slice(half), slice(half, None))
    ]

    def finish() -> None:
        for handle in handles:
            handle.wait()
        numels = [shape.numel() for shape in unit.shapes]
        for param, shape, piece in zip(unit.params, unit.shapes, unit.flat[: sum(numels)].split(numels), strict=True):
            param.data = piece.view(shape)

    return finish


def test_two_calls_in_time_are_not_taken_for_one_that_starts_late() -> None:
    verdict = get("zero3.start_gather").check(gathered_in_halves)

    assert verdict.mistake is None and "made 2 all_gather" in verdict.findings[0].observed


def test_a_rank_that_the_check_holds_back_is_not_said_to_miss_a_send() -> None:
    verdict = get("zero3.start_gather").check(lambda unit: gathered_in_halves(unit)())

    assert "the check holds a rank back" in verdict.next_step and "missing" not in verdict.next_step
    assert "deadlock: rank 0 waits, while the check holds rank 1 back\n" in verdict.findings[0].observed
