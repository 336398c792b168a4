"""Two known mistakes at once: found because a mistake is an edit, guessed and never stated, and never made up."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from course_lib.exercises import Case, get
from course_lib.exercises.checking import diagnose
from course_lib.exercises.form.source import edited
from tests.exercises.sample import DOUBLED, MEAN, changed, mean
from tests.exercises.test_answers import made


def four_bytes_and_frozen(model: nn.Module) -> dict[str, int]:
    held = sum(param.numel() * 4 for param in model.parameters())
    return {"parameters": held, "gradients": held}


def four_bytes_and_half(model: nn.Module) -> dict[str, int]:
    held = sum(param.numel() * 4 for param in model.parameters())
    return {"parameters": held, "gradients": held // 2}


def test_two_mistakes_at_once_are_a_guess() -> None:
    verdict = get("memory.model").check(four_bytes_and_frozen)
    (finding,) = verdict.findings

    assert verdict.mistake is None and finding.likely == ""
    assert finding.perhaps.startswith("Two mistakes at once. First: You count a gradient for frozen parameters.")
    assert "Second: You count the same bytes for every element" in finding.perhaps
    assert finding.action.startswith("first, count a gradient only where")
    assert "\nPerhaps: Two mistakes" in str(finding)


def test_no_pair_is_named_if_one_of_two_mistakes_is_unknown() -> None:
    (finding,) = get("memory.model").check(four_bytes_and_half).findings

    assert finding.perhaps == ""


@pytest.mark.parametrize("answer", [lambda: 2 * dist.get_world_size(), lambda: dist.get_rank() + 1])
def test_the_first_exercise_names_no_pair_of_which_a_part_is_untrue(answer: Callable[[], int]) -> None:
    (finding,) = get("start.first").check(answer).findings

    assert finding.observed and finding.perhaps == ""


def test_no_pair_is_tried_where_nobody_waits_because_values_are_not_compared_then() -> None:
    exercise = changed(MEAN, mistakes=[], pairs=MEAN.mistakes)
    unwaited = SimpleNamespace(yours=SimpleNamespace(warnings=("rank 0 never waited for all_reduce #1.",)))
    runs: Any = SimpleNamespace(exercise=exercise, solution=mean, trial=lambda case: unwaited)

    assert diagnose.diagnose(runs, [Case(world_size=2, args=lambda rank: ())]) is None


def test_a_pair_is_each_two_edits_that_go_together_once() -> None:
    exercise = get("memory.model")
    ids = [frozenset(pair.id.split(" + ")) for pair in exercise.pairs]

    assert len(set(ids)) == len(ids) > len(exercise.mistakes)
    assert all(len(one) == 2 for one in ids)


def test_a_diagnosis_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "SECONDS", 0.0)

    (finding,) = get("memory.model").check(four_bytes_and_frozen).findings
    assert finding.perhaps == "" and finding.observed


def test_the_mistake_that_looks_like_the_solution_is_compared_first() -> None:
    exercise = get("memory.model")
    for mistake in exercise.mistakes:
        assert diagnose._by_source(exercise.mistakes, mistake.solution, exercise.reference)[0] is mistake


def test_a_pair_does_not_say_that_something_is_right() -> None:
    messages = [pair.message for name in ("tensor.mlp", "tensor.clip_mesh") for pair in get(name).pairs]

    assert any("In backward, `x` gets only" in message for message in messages)
    assert any("Every gradient is as it was" in message for message in messages)
    assert not any(re.search(r"\b(is|are) right\b", message) for message in messages)


def test_a_pair_breaks_the_rules_that_the_solution_breaks() -> None:
    """Its numbers are those of a model that is filled before it is sharded, which would hold the whole model."""

    def shard_from_meta(make: Callable[[], nn.Module], read: Callable[[str], torch.Tensor]) -> nn.Module:
        with torch.device("meta"):
            model = make()
        for unit in model.children():
            fully_shard(unit)
        model.to_empty(device="cpu")
        for name, shard in model.state_dict().items():
            whole = read(name)
            sharded = isinstance(shard, DTensor)
            shard.copy_(distribute_tensor(whole, shard.device_mesh, shard.placements) if sharded else whole)
        return model

    (finding,) = get("cluster.meta_device").check(shard_from_meta).findings
    assert "'the units' of rank 0" in finding.observed and finding.perhaps == ""


def test_an_error_is_not_explained_by_two_mistakes() -> None:
    def embedding(tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(tokens - dist.get_rank() * len(rows), rows)

    verdict = get("tensor.embedding").check(embedding)
    assert verdict.status == "error" and verdict.findings[0].perhaps == ""


def test_a_mistake_is_a_guess_if_the_source_has_the_right_text_where_it_is() -> None:
    def twice(numbers: list[int]) -> list[int]:
        [2 * number for number in numbers]
        return numbers + numbers

    verdict = DOUBLED.check(twice)
    assert verdict.mistake is None and verdict.findings[0].likely == ""
    assert verdict.findings[0].perhaps.startswith("This mistake has the same result, though your code is written diff")


def test_a_mistake_that_changes_an_attribute_is_a_guess_if_the_source_has_the_right_one() -> None:
    def within_capacity(choice: torch.Tensor, experts: int, capacity: int) -> torch.Tensor:
        counts = nn.functional.one_hot(choice, experts).cumsum(dim=0).clamp(max=capacity)
        return counts.gather(1, choice[:, None])[:, 0] <= capacity

    verdict = get("context.capacity").check(within_capacity)
    assert verdict.mistake is None and verdict.findings[0].likely == ""
    assert verdict.findings[0].perhaps.startswith("This mistake has the same result, though")


def test_names_of_variables_do_not_count_in_the_source() -> None:
    def twice(values: list[int]) -> list[int]:
        [2 * value for value in values]
        return values + values

    assert DOUBLED.check(twice).mistake is None


def test_a_known_mistake_is_named_though_it_differs_only_in_the_name_of_a_variable() -> None:
    """The right answer has the same hook on the output."""
    exercise = get("zero3.sharded_forward")
    hook_on_x = exercise.solution.replace("output.register_hook", "x.register_hook")
    assert exercise.check(made(exercise.name, hook_on_x)).mistake == "gathered-by-a-hook-on-any-x"


def test_a_gather_that_never_comes_is_explained() -> None:
    exercise = get("zero3.sharded_forward")
    no_hook = exercise.solution.replace("    output.register_hook(lambda grad: gather(unit))\n", "")
    assert exercise.check(made(exercise.name, no_hook)).mistake == "not-there-when-backward-begins"


def test_a_gather_that_is_only_started_is_explained() -> None:
    exercise = get("zero3.sharded_forward")
    started = exercise.solution.replace(
        "lambda grad: gather(unit)", "lambda grad: setattr(unit, 'finish', start_gather(unit))"
    )
    likely = exercise.check(made(exercise.name, started)).findings[0].likely
    assert "the unit is not gathered at that moment" in likely and "Or its all-gather was only started" in likely


@pytest.mark.parametrize("condition", ["if unit.flat is None:", "if isinstance(saved, tuple):"])
def test_a_gather_that_waits_for_a_saved_parameter_is_explained(condition: str) -> None:
    exercise = get("zero3.sharded_forward")
    when_asked = exercise.solution.replace("    output.register_hook(lambda grad: gather(unit))\n", "").replace(
        "return unit.flat.as_strided", f"{condition}\n            gather(unit)\n        return unit.flat.as_strided"
    )
    assert exercise.check(made(exercise.name, when_asked)).mistake == "gathered-when-asked"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "first"),
    [
        ("seed-by-rank not-its-own-weights optimizer-before-sharding never-reduces one-file-for-all", "seed-by-rank"),
        ("not-its-own-weights same-order-every-epoch never-reduces", "same-order-every-epoch"),
        ("optimizer-before-sharding never-reduces one-file-for-all", "optimizer-before-sharding"),
    ],
)
def test_of_a_repairs_many_faults_the_first_to_show_is_named(left: str, first: str) -> None:
    exercise = get("cluster.repair_train")
    by_id = {mistake.id: mistake for mistake in exercise.faults}
    edits = {old: new for id in left.split() for old, new in by_id[id].edits.items()}

    verdict = exercise.check(made(exercise.name, edited(exercise.solution, edits)))
    assert verdict.mistake is None and verdict.findings[0].perhaps == by_id[first].sentence
    assert verdict.findings[0].action == by_id[first].action


def test_a_fault_that_is_repaired_is_not_named_for_a_different_mistake() -> None:
    exercise = get("cluster.repair_train")
    same_order = exercise.solution.replace("set_epoch(epoch)", "set_epoch(epoch)\n        sampler.epoch = 0")

    (finding,) = exercise.check(made(exercise.name, same_order.replace("lr=0.01", "lr=0.02"))).findings
    assert "'examples, in order'" in finding.observed and finding.perhaps == ""
