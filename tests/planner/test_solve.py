"""The largest or the least that fits: what is one larger does not fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from course_lib.planner import (
    HARDWARE,
    MODELS,
    Plan,
    cheapest,
    fewest_ranks,
    fits,
    largest_batch,
    longest_sequence,
    plan,
)

GIVEN = {"model": "llama3-8b", "world_size": 64, "stage": 3, "attention": "flash", "checkpointing": "full"}
MACHINE = "h100-infiniband"


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    most = largest_batch(plan(**GIVEN), MACHINE)

    assert fits(plan(**GIVEN, batch=most), MACHINE)
    assert not fits(plan(**GIVEN, batch=most + 1), MACHINE)


def test_the_longest_sequence_fits_and_one_token_more_does_not() -> None:
    most = longest_sequence(plan(**GIVEN, batch=2), MACHINE)

    assert fits(plan(**GIVEN, batch=2, sequence=most), MACHINE)
    assert not fits(plan(**GIVEN, batch=2, sequence=most + 1), MACHINE)


def test_no_sequence_is_longer_than_the_model_was_made_for() -> None:
    assert longest_sequence(plan(model="gpt2", world_size=8, stage=3), "h100") == 1024


def test_a_short_context_is_searched_too() -> None:
    assert longest_sequence(plan(model=replace(MODELS["gpt2"], context=64), sequence=1), "h100") == 64


@pytest.mark.parametrize("solver", [largest_batch, longest_sequence])
def test_without_activations_nothing_says_what_fits(solver: Callable[[Plan, str], int]) -> None:
    with pytest.raises(ValueError, match=r"for a model: only a transformer's activations are planned.* Give model="):
        solver(plan(params=7e9), "h100")


@pytest.mark.parametrize(
    ("tokens", "days"), [(0, 1), (1e12, 0), (float("inf"), 1), (float("nan"), 1), ("1e12", 1), (1, None)]
)
def test_impossible_budgets_are_refused(tokens: float, days: float) -> None:
    with pytest.raises(ValueError, match="give two numbers above 0, and finite tokens"):
        cheapest("gpt2", MACHINE, tokens=tokens, days=days)


def test_a_machine_without_a_network_is_one_node() -> None:
    takes = (
        r"on at most 4 ranks of 4x RTX 4090, PCIe: the fastest takes [\d,.]+ days\. Allow more days, hardware with a"
    )
    with pytest.raises(ValueError, match=takes):
        cheapest("gpt2", "rtx-4090", tokens=1e12, days=1)
    with pytest.raises(ValueError, match=r"on at most 2 ranks .* Allow more days, more ranks or fewer tokens"):
        cheapest("gpt2", "rtx-4090", tokens=1e12, days=1, most_ranks=2)


def test_nothing_fits_means_0() -> None:
    planned = plan(model="llama-405b", world_size=4, stage=3)
    whole = plan(model="llama-405b", world_size=4)  # on any number of ranks

    assert largest_batch(planned, "rtx-4090") == longest_sequence(planned, "rtx-4090") == 0
    assert fewest_ranks(whole, "rtx-4090") == 0


def test_the_fewest_ranks_fit_and_half_of_them_do_not() -> None:
    planned = plan(**GIVEN, tensor_parallel=2, shard_size=8)
    fewest = fewest_ranks(planned, MACHINE)
    some, half = (plan(**GIVEN | {"world_size": ranks}, tensor_parallel=2) for ranks in (fewest, fewest // 2))

    assert 2 < fewest < 64
    assert fits(some, MACHINE) and not fits(half, MACHINE)


def test_ranks_that_share_sequences_stay_together() -> None:
    given = GIVEN | {"checkpointing": "none", "context_parallel": 4, "reshard": 8, "sequence": 8192}
    cut = longest_sequence(plan(**GIVEN, tensor_parallel=8, batch=64), MACHINE)
    fewest, longest = (solver(plan(**given), MACHINE) for solver in (fewest_ranks, longest_sequence))

    assert fewest % 4 == longest % 4 == 0
    assert fits(plan(**given | {"world_size": fewest, "reshard": True}), MACHINE)
    assert fits(plan(**given | {"sequence": longest}), MACHINE)
    assert not fits(plan(**given | {"sequence": longest + 4}), MACHINE)
    assert 0 < cut < MODELS["llama3-8b"].context and cut % 8 == 0


def test_the_fewest_ranks_of_a_number_of_parameters() -> None:
    """7 B in mixed precision and stage 3: 16 bytes each over 2 ranks are 56 GB."""
    assert fewest_ranks(plan(params=7e9, world_size=8, stage=3), "h100") == 2


def test_the_fewest_ranks_may_lie_between_two_powers_of_two() -> None:
    given = {"model": "llama3-70b", "stage": 3, "attention": "flash", "checkpointing": "full"}
    fewest = fewest_ranks(plan(**given, world_size=64), MACHINE)

    assert fewest == 24  # three nodes of 8
    assert fits(plan(**given, world_size=fewest), MACHINE)
    assert not fits(plan(**given, world_size=fewest - 8), MACHINE)


@pytest.mark.parametrize(("given", "expected"), [
    ({"model": "llama3-8b", "stage": 1, "pipeline_parallel": 3, "micro_batches": 12}, 24),
    ({"model": "mixtral-8x7b", "stage": 3, "context_parallel": 3, "expert_parallel": 8, "sequence": 12288}, 48),
])  # fmt: skip
def test_the_fewest_ranks_can_be_planned(given: dict[str, Any], expected: int) -> None:
    """Three stages of 4 ranks have room, and fill 1.5 nodes; 3 ranks share a sequence, and 8 the experts."""
    given = given | {"attention": "flash"}
    machine = "a100-40gb" if given["stage"] == 1 else MACHINE
    fewest = fewest_ranks(plan(**given, world_size=24), machine)

    assert fewest == expected
    least = plan(**given, world_size=fewest)
    assert fits(least, machine) and least.step_seconds(machine) > 0


@pytest.mark.parametrize("given", [
    {"model": "llama3-70b", "world_size": 96, "tensor_parallel": 4, "pipeline_parallel": 8, "micro_batches": 16},
    {"model": "llama3-8b", "world_size": 24, "tensor_parallel": 4, "pipeline_parallel": 2, "micro_batches": 2},
    {"model": "llama-13b", "world_size": 32, "pipeline_parallel": 2, "micro_batches": 2},
])  # fmt: skip
def test_stages_that_fill_no_whole_nodes_are_timed_as_the_search_recommends_them(given: dict[str, Any]) -> None:
    """12 ranks, as 1.5 nodes: the step takes about as long as on the next whole number of nodes for each stage."""
    fewest = fewest_ranks(plan(**given, stage=1, sequence=4096, attention="flash"), MACHINE)
    stages = given["pipeline_parallel"]
    seconds = [
        plan(**given | {"world_size": ranks}, stage=1, sequence=4096, attention="flash").step_seconds(MACHINE)
        for ranks in (fewest, 12 * stages, 16 * stages)
    ]

    assert seconds[1] == pytest.approx(seconds[2], rel=0.1)


def test_the_cheapest_meets_the_deadline_and_half_the_ranks_do_not() -> None:
    best = cheapest("llama3-8b", MACHINE, tokens=1e12, days=30, sequence=8192)
    ranks = best.plan.settings.world_size
    quicker = cheapest("llama3-8b", MACHINE, tokens=1e12, days=30 / 8, sequence=8192)

    assert best.seconds <= 30 * 86400 < 2.1 * best.seconds
    assert best.gpu_hours == pytest.approx(best.seconds * ranks / 3600)
    assert quicker.plan.settings.world_size > ranks
    assert repr(best).startswith(f"With sequences of 8192 tokens: {best.gpu_hours:,.0f} GPU-hours, ")


def test_the_most_ranks_may_lie_between_two_powers_of_two() -> None:
    """Of 100 ranks, whole nodes are used."""
    best = cheapest("llama3-8b", MACHINE, tokens=1e12, days=15, sequence=4096, most_ranks=100)

    assert best.plan.settings.world_size == 96
    assert best.seconds <= 15 * 86400


def test_a_later_deadline_does_not_cost_more() -> None:
    """From 32 ranks on there is time, and 256 have the memory to need the fewest GPU-hours."""
    given = {"tokens": 1e11, "sequence": 4096, "pipeline_parallel": 1}
    soon, late = (cheapest("llama3-70b", MACHINE, **given, days=days) for days in (8, 64))

    assert late.gpu_hours == soon.gpu_hours
    assert cheapest("llama3-70b", MACHINE, **given, days=64, most_ranks=64).gpu_hours > late.gpu_hours


def test_one_doubling_that_saves_nothing_does_not_end_the_search() -> None:
    """16 ranks leave the node and cost more than 8, but 32 cost less."""
    given = {"tokens": 1e11, "sequence": 4096, "days": 100}
    hours = [cheapest("llama3-8b", "a100-40gb", **given, most_ranks=most).gpu_hours for most in (8, 16, 32)]

    assert hours[0] == hours[1] > hours[2]


@pytest.mark.parametrize(("model", "machine", "ranks", "given"), [
    ("llama3-70b", MACHINE, 224, {"fp8": "matrices", "tensor_parallel": 2, "sequence": 2048}),
    (replace(MODELS["llama3-8b"], layers=4, vocab=262144, tied=False), "h100", 4, {"sequence": 4096}),
])  # fmt: skip
def test_what_a_plan_can_do_in_time_is_not_refused(model: Any, machine: str, ranks: int, given: dict[str, Any]) -> None:
    """fp8 is faster than bf16, and the embedding computes nothing, though 6 FLOPs for each parameter count it."""
    one = plan(model=model, world_size=ranks, stage=3, attention="flash", implementation="fused", **given)
    one = replace(one, settings=replace(one.settings, batch=largest_batch(one, machine)))
    days = 1e11 / one.tokens_per_second(machine) / ranks / 86400
    given = given | {"pipeline_parallel": 1, "tokens": 1e11, "most_ranks": ranks}

    assert cheapest(model, machine, days=1.001 * days, **given).plan.settings.world_size == ranks
    with pytest.raises(ValueError, match=r"the fastest takes .* Allow more days, "):
        cheapest(model, machine, days=0.5 * days, **given)


def test_the_cheapest_way_can_cut_the_model() -> None:
    """A slow network: what stays in a node is cheaper."""
    given = {"tokens": 1e12, "days": 60, "sequence": 4096}
    best, uncut = (cheapest("llama3-70b", "h100-ethernet", **given, **fixed) for fixed in (
        {}, {"tensor_parallel": 1, "pipeline_parallel": 1}))  # fmt: skip
    settings = best.plan.settings

    assert settings.data_parallel < settings.world_size
    assert best.gpu_hours < uncut.gpu_hours
    assert settings.stage == (1 if settings.pipeline_parallel > 1 else 3)
    assert settings.micro_batches == (8 * settings.pipeline_parallel if settings.pipeline_parallel > 1 else 1)


def test_the_cheapest_way_keeps_the_batch_that_is_given() -> None:
    given = {"tokens": 1e12, "days": 30, "sequence": 4096, "tensor_parallel": 1, "pipeline_parallel": 1}
    one = cheapest("llama3-8b", MACHINE, **given, batch=1)

    assert one.plan.settings.batch == 1 < cheapest("llama3-8b", MACHINE, **given).plan.settings.batch
    for offload, said in (({}, " without offload. Allow offload,"), ({"offload": ["optimizer"]}, r"\. Allow")):
        with pytest.raises(ValueError, match=rf"nothing fits{said} hardware with .* or a smaller batch"):
            cheapest("llama3-8b", MACHINE, **given, **offload, batch=400)


@pytest.mark.parametrize("given", [
    {"tensor_parallel": 8}, {"pipeline_parallel": 2}, {"context_parallel": 2}, {"shard_size": 8},
    {"offload": ("optimizer",)}, {"engine": "torch"},
])  # fmt: skip
def test_the_cheapest_way_keeps_what_is_given(given: dict[str, Any]) -> None:
    """What one rank, or stage 0, could not do as well."""
    settings = cheapest("llama3-8b", MACHINE, tokens=1e12, days=30, sequence=4096, **given).plan.settings

    assert {name: getattr(settings, name) for name in given} == given


def test_what_no_way_of_training_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"world_size=64 with tensor_parallel=3 .* Choose a multiple of it"):
        cheapest("llama3-8b", MACHINE, tokens=1e9, days=30, most_ranks=64, tensor_parallel=3)


def test_a_deadline_that_nothing_meets_is_refused() -> None:
    advice = "Allow more days, more ranks or fewer tokens"
    with pytest.raises(ValueError, match=rf"on at most 64 ranks of .*: the fastest takes [\d,.]+ days\. {advice}\."):
        cheapest("llama3-8b", MACHINE, tokens=1e14, days=800, most_ranks=64)


def test_a_smaller_batch_than_one_sequence_is_no_advice() -> None:
    for given, ending in (({}, "or a shorter sequence"), ({"sequence": 1}, "or more ranks")):
        with pytest.raises(ValueError, match=rf" Allow offload, hardware with more memory.* {ending}\.$"):
            cheapest("llama-405b", "a100-40gb", tokens=1e9, days=30, most_ranks=8, **given)


def test_one_hour_and_one_day_are_singular_and_a_part_of_an_hour_is_not_one() -> None:
    best = cheapest("gpt2", "h100", tokens=1e9, days=1)
    assert best.gpu_hours < 1 and f": {best.gpu_hours:.3g} GPU-hours, 0.0" in repr(best)
    assert ": 1 GPU-hour, 1 day, " in repr(replace(best, gpu_hours=1.0, seconds=86400.0))
    with pytest.raises(ValueError, match=r"^1e\+09 tokens in 1 day on at most 4 ranks of 4x RTX 4090, PCIe: "):
        cheapest("llama3-8b", "rtx-4090", tokens=1e9, days=1, lora_rank=16)


def test_the_last_stage_of_a_pipeline_has_to_fit_too() -> None:
    """Its logits are large, the first stage's activations are small."""
    given = {"model": "llama3-8b", "world_size": 8, "pipeline_parallel": 8, "attention": "flash", "sequence": 8192}
    first, last = (plan(**given, batch=3, checkpointing="full", pipeline_stage=stage) for stage in (0, 7))

    assert first.peak_bytes < last.peak_bytes
    assert fits(first, MACHINE) == (last.peak_bytes <= HARDWARE[MACHINE].memory_bytes)
