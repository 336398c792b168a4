"""The planner's widget: its fields are settings of `plan`, and what it shows is the plan."""

import re

import pytest

from course_lib import plan, show_planner
from course_lib.planner import HARDWARE, MODELS
from course_lib.plots.plan import LEFT, plot_plan


def test_it_starts_with_a_plan() -> None:
    planner = show_planner()

    assert planner.plan == plan(
        model="llama-7b", world_size=8, stage=3, precision="mixed", batch=1, checkpointing="none", sequence=4096,
        attention="flash",
    )  # fmt: skip
    assert "<img alt=" in planner.figure.value
    assert "Fits:</strong> rank 0 holds at most" in planner.verdict.value


def test_choosing_in_a_field_draws_its_plan() -> None:
    planner = show_planner()
    before = planner.figure.value
    planner.fields["stage"].value = 1

    assert planner.plan.settings.stage == 1
    assert planner.figure.value != before
    assert "stage 1 on 8 ranks" in planner.figure.value


def test_what_changes_is_read_out() -> None:
    planner = show_planner()
    assert "role=" not in planner.verdict.value
    planner.fields["stage"].value = 2
    assert '<div role="alert">' in planner.verdict.value


def test_what_does_not_fit_says_how_much_is_short() -> None:
    planner = show_planner(stage=0)
    short = (planner.plan.reserved_bytes - 80e9) / 1e9

    assert f"Does not fit:</strong> {short:.3g} GB short on rank 0, optimizer step" in planner.verdict.value


def test_several_fields_are_given_at_once() -> None:
    planner = show_planner(model="llama-70b", world_size=64, hardware="h100-infiniband", checkpointing="full")

    assert (planner.plan.model.name, planner.plan.settings.world_size) == ("Llama 2 70B", 64)
    assert "nodes of 8x H100 over InfiniBand" in planner.figure.value


def test_what_cannot_be_planned_says_why_and_recovers() -> None:
    planner = show_planner()
    planner.fields["world_size"].value = 12

    assert "Cannot be planned.</strong> 12 ranks on 8x H100 80GB, NVLink: that is one node" in (planner.verdict.value)
    assert planner.figure.layout.visibility == "hidden"
    assert repr(planner).startswith("Cannot be planned: 12 ranks on 8x H100")
    planner.fields["world_size"].value = 8
    assert "Fits:" in planner.verdict.value
    assert planner.figure.layout.visibility == "visible"


def test_other_settings_can_be_given_and_stay() -> None:
    planner = show_planner(sequence=512, optimizer="adam8bit", offload=["optimizer"])
    planner.fields["model"].value = "gpt2"

    settings = planner.plan.settings
    assert (settings.sequence, settings.optimizer, settings.offload) == (512, "adam8bit", ["optimizer"])


def test_the_length_follows_the_model() -> None:
    planner = show_planner(model="gpt2")
    assert planner.plan.settings.sequence == 1024
    planner.fields["model"].value = "llama-405b"
    assert planner.plan.settings.sequence == 4096


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"gpus": 8}, "setting='gpus'"),
        ({"model": "llama-8b"}, "model='llama-8b': the planner knows no such model, only 31 by name. Did you mean"),
        ({"world_size": 0}, "world_size=0: what is counted here is whole, from 1 to 1000000"),
        ({"stage": 4}, "stage=4: the planner knows no such stage"),
    ],
)
def test_what_no_field_has_is_refused(chosen: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        show_planner(**chosen)


def test_a_setting_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="setting='sequense'"):
        show_planner(sequense=5)


def test_the_text_form_is_the_whole_plan() -> None:
    planner = show_planner(model="gpt2")

    assert repr(planner) == planner.plan.explain("h100")
    assert "The figure as text" in planner.figure.value


def test_every_field_has_a_label() -> None:
    planner = show_planner()

    assert [field.description for field in planner.fields.values()] == [
        "Model", "Hardware", "GPUs", "ZeRO stage", "Precision", "Tensor parallel", "Pipeline stages",
        "Sequences of a micro-batch", "Micro-batches", "Activation checkpointing",
    ]  # fmt: skip


# The figure


def widths(svg: str, color: str) -> list[float]:
    """Return the widths of the blocks in that colour, without the legend's."""
    found = re.findall(r'width="([\d.]+)" height="16" fill="([^"]+)"', svg)
    return [float(width) for width, fill in found if fill == color]


def test_bars_are_as_long_as_their_bytes() -> None:
    planned = plan(params=7.5e9, world_size=64, stage=1, precision="mixed")
    svg = plot_plan(planned, "h100-infiniband").svg
    blue, green = (widths(svg, color)[0] for color in ("#0072B2", "#009E73"))

    assert blue / green == pytest.approx(planned.bytes["parameters"] / planned.bytes["optimizer"], rel=0.01)


def test_the_line_is_at_the_devices_memory() -> None:
    planned = plan(params=7.5e9, world_size=64, stage=0, precision="mixed")  # 120 GB
    svg = plot_plan(planned, "h100-infiniband").svg
    (line,) = re.findall(r'<path d="M([\d.]+) [\d.]+L[^>]*stroke-dasharray', svg)
    bar = sum(widths(svg, color)[0] for color in ("#0072B2", "#009E73", "#E69F00"))

    assert (float(line) - LEFT) / bar == pytest.approx(80 / 120, rel=0.01)


def test_the_figure_follows_the_theme_and_says_what_it_shows() -> None:
    picture = plot_plan(plan(model="gpt2", world_size=8, stage=3), "h100")

    assert 'width="100%" height="100%" fill="var(--paper)"' in picture.svg
    assert 'style="width: 784px; aspect-ratio: 784 / ' in picture.html
    assert "a rank holds at most" in picture.caption
    assert "Most at once on the device" in picture.text


def test_averaging_is_shown_where_an_engine_has_it() -> None:
    plans = (plan(model="gpt2", world_size=8, stage=1, engine=engine) for engine in ("paper", "zero"))

    assert [">averaging<" in plot_plan(planned, "h100").svg for planned in plans] == [False, True]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_can_be_drawn(model: str) -> None:
    assert "A step on" in plot_plan(plan(model=model, world_size=16, stage=3), HARDWARE["h100-infiniband"]).svg


def test_one_rank_sends_nothing() -> None:
    assert "sends nothing" in plot_plan(plan(model="gpt2"), "laptop").svg


def test_what_is_offloaded_is_told() -> None:
    planned = plan(model="gpt2", world_size=8, stage=3, offload=["optimizer"])

    assert ">in the host&#x27;s memory<" in plot_plan(planned, "h100").svg


def test_a_model_can_be_cut_over_gpus_in_more_ways() -> None:
    planner = show_planner(model="llama-70b", world_size=64, hardware="h100-infiniband")
    for name, value in {"tensor_parallel": 8, "pipeline_parallel": 2, "micro_batches": 4}.items():
        planner.fields[name].value = value

    assert (planner.plan.settings.data_parallel, planner.plan.settings.micro_batches) == (4, 4)
    assert "stage 3 on 64 ranks, TP 8, PP 2, mixed" in planner.figure.value


def test_a_plan_within_its_error_of_the_memory_may_fit() -> None:
    planner = show_planner(model="llama3-8b", stage=1, sequence=8192)

    assert 80e9 < planner.plan.peak_bytes < 92e9
    assert ">May fit:</strong>" in planner.verdict.value
