"""Each of the seventeen questions has an answer that follows from plans."""

import re
from dataclasses import replace

import pytest

from course_lib.planner import HARDWARE, QUESTIONS, Plan, fits, plan, size

MACHINE = "h100-infiniband"
GIVEN = {
    "model": "llama3-8b", "world_size": 64, "stage": 3, "attention": "flash", "sequence": 8192, "engine": "torch",
    "implementation": "fused",
}  # fmt: skip


def asked(question: str, **changes: object) -> str:
    return plan(**GIVEN | changes).explain(MACHINE, question)


def changed(**changes: object) -> tuple[str, str]:
    """The peaks before and after."""
    return size(plan(**GIVEN).peak_bytes), size(plan(**GIVEN | changes).peak_bytes)


@pytest.mark.parametrize("question", ["batch", "sequence", "checkpointing", "units", "module", "checkpointing_frees"])
def test_without_a_transformer_activations_are_unknown(question: str) -> None:
    assert plan(params=7e9, world_size=8).explain(MACHINE, question).startswith("Only a transformer's activations")


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_has_an_answer_for_every_kind_of_plan(question: str) -> None:
    for given in (GIVEN, {"params": 7e9, "world_size": 8}, {"params": [(512, 512)] * 3, "world_size": 8, "stage": 3}):
        assert plan(**given).explain(MACHINE, question).endswith(".")


def test_there_are_seventeen() -> None:
    assert len(QUESTIONS) == 17


def test_the_peak() -> None:
    planned = plan(**GIVEN)

    for nbytes in (planned.peak_bytes, planned.active_bytes, planned.reserved_bytes):
        assert size(nbytes) in asked("peak")
    assert f"{size(80e9 - planned.reserved_bytes)} stay free" in asked("peak")


def test_other_wrapping() -> None:
    """A single unit is gathered whole."""
    layers, whole = (float(number) for number in re.findall(r"([\d.]+) GB", asked("wrapping")))

    assert whole > 16.1 > layers
    assert "elsewhere nothing is gathered" in asked("wrapping", stage=1, engine="paper")


def test_units_of_a_tensor_parallel_plan_can_be_wrapped() -> None:
    whole, part = (re.findall(r"[\d.]+ [GM]B", asked("wrapping", tensor_parallel=ranks)) for ranks in (1, 8))

    assert len(part) == 2
    assert part != whole


@pytest.mark.parametrize(("question", "name"), [("batch", "batch"), ("sequence", "sequence")])
def test_the_largest_that_fits(question: str, name: str) -> None:
    most = int(asked(question, checkpointing="full").split()[2])

    assert fits(plan(**GIVEN | {"checkpointing": "full", name: most}), MACHINE)
    assert not fits(plan(**GIVEN | {"checkpointing": "full", name: most + 1}), MACHINE)


def test_from_how_many_ranks_on() -> None:
    ranks = int(asked("world_size").split()[1])

    assert fits(plan(**GIVEN | {"world_size": ranks}), MACHINE)
    assert not fits(plan(**GIVEN | {"world_size": ranks // 2}), MACHINE)
    assert "With no number of ranks" in plan(params=100e9, stage=1).explain(MACHINE, "world_size")


@pytest.mark.parametrize(
    ("question", "changes"),
    [
        ("offload", {"offload": ["optimizer"]}),
        ("fp32_reduction", {"precision": "mixed_fp32_accumulation"}),
        ("mixed_precision", {"precision": "fp32"}),
        ("hybrid", {"shard_size": 8}),
        ("no_reshard", {"reshard": False}),
    ],
)
def test_what_another_setting_changes(question: str, changes: dict[str, object]) -> None:
    before, after = changed(**changes)

    assert f"the peak {before} -> {after}, the step " in asked(question)


def test_which_checkpointing() -> None:
    assert "'none' is the first that fits" in asked("checkpointing")
    assert "'operators' is the first that fits" in asked("checkpointing", batch=2)
    assert "nothing fits" in asked("checkpointing", batch=64)


def test_what_each_unit_holds() -> None:
    """A layer has 218 million parameters, the outer unit an embedding and a head of 525 million each, and a norm."""
    assert "The outer unit has 2.1 GB of parameters, a layer 436 MB" in asked("units")


def test_a_smaller_mesh() -> None:
    assert f"1/32 of the parameters, {size(2 * 8_030_261_248 // 32)} stay" in asked("smaller_mesh")


def test_which_module_makes_the_activations() -> None:
    """Four products of 14,336 elements of 2 bytes for each of 8,192 tokens."""
    assert f"inside of the feed-forward layer: {size(4 * 14336 * 2 * 8192)} of" in asked("module")
    assert "A dry run measures them" in plan(params=1e9).explain(MACHINE, "module")


def test_which_unit_holds_unsharded_memory() -> None:
    small = replace(plan(**GIVEN).model.transformer, vocab=1000)

    assert "the outer unit, with embedding and head, holds most: 2.1 GB" in asked("unsharded")
    assert "layer 0 holds most: 436 MB" in asked("unsharded", model=small)
    assert "parameters stay whole" in asked("unsharded", stage=1, engine="paper")


def test_whether_checkpointing_lowers_the_peak() -> None:
    none, full = (plan(**GIVEN | {"checkpointing": how}).peak_bytes for how in ("none", "full"))

    assert f"lowers the peak by {size(none - full)}" in asked("checkpointing_frees")


def test_how_fast() -> None:
    planned: Plan = plan(**GIVEN)
    machine = HARDWARE[MACHINE]

    assert f"{planned.tokens_per_second(machine):,.0f} tokens a second on each GPU" in asked("speed")
    assert planned.tokens_per_second(machine) * 64 * planned.step_seconds(machine) == pytest.approx(64 * 8192)


def test_an_unknown_question_is_refused() -> None:
    with pytest.raises(ValueError, match=r"question='peek': .* Did you mean 'peak'"):
        asked("peek")
    with pytest.raises(ValueError, match=r"question='peak' without hardware"):
        plan(**GIVEN).explain(question="peak")
