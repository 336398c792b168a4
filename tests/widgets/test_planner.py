"""The planner as a page: its fields are settings of `plan`, its address is a plan, its bars are as long as bytes."""

import json
import re
from dataclasses import fields
from typing import Any

import pytest

from course_lib import plan, show_planner
from course_lib.planner import HARDWARE, Plan, Settings, page, size
from course_lib.plots.canvas import CATEGORIES
from course_lib.widgets.planner.drawing import Shown, axis, drawing, ends
from course_lib.widgets.planner.fields import GROUPS, START, value, written
from course_lib.widgets.planner.page import Planner

FIRST = {"model": "llama-7b", "world_size": 8, "stage": 3, "sequence": 4096, "attention": "flash"}


def shown(planner: Planner, query: str) -> dict[str, Any]:
    """Return what a browser gets for an address."""
    return dict(json.loads(planner.show(query)))


# The widget


def test_it_starts_with_a_plan() -> None:
    planner = show_planner()

    assert planner.plan == plan(**FIRST)
    assert "<strong>✓ Fits</strong> Rank 0 holds at most" in planner.verdict.value
    assert "Stage 3 on 8 ranks" in planner.drawing.value
    assert "Stage 3 on 8 ranks, TP 2, mixed" in show_planner(tensor_parallel=2).drawing.value


def test_a_change_is_planned_and_read_out() -> None:
    planner = show_planner()
    assert "role=" not in planner.verdict.value
    planner.choose({"stage": "1"})

    assert planner.plan.settings.stage == 1
    assert '<div role="alert">' in planner.verdict.value
    assert "Stage 1 on 8 ranks" in planner.drawing.value
    assert '<input type="radio" name="stage" value="1" checked>' in planner.form.value


def test_what_does_not_fit_says_how_much_is_short_and_why() -> None:
    planner = show_planner(stage=0)
    short = size(planner.plan.reserved_bytes - 80e9)

    taken = f"torch reserves {size(planner.plan.reserved_bytes)} for a peak of {size(planner.plan.peak_bytes)}"
    said = f"✗ Does not fit</strong> {short} short on rank 0: {taken}, and the device has 80 GB."
    assert said in planner.verdict.value
    assert f"{short} short: optimizer step, mostly states of adam" in planner.drawing.value


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"offload": ("optimizer", "parameters"), "hardware": "rtx-4090", "world_size": 4, "checkpointing": "full"},
         "short on rank 0, in the host&#x27;s memory, of which a rank has 64 GB."),
        ({"stage": 1, "pipeline_parallel": 2, "batch": 4}, "short on the last stage: torch reserves"),
    ],
)  # fmt: skip
def test_it_says_where_bytes_are_missing(given: dict[str, Any], line: str) -> None:
    assert line in Planner(**{"model": "llama-70b"} | given).verdict


def test_a_plan_within_its_error_of_the_memory_may_fit() -> None:
    planner = show_planner(model="llama3-8b", stage=1, sequence=8192)

    assert 80e9 < planner.plan.peak_bytes < 92e9
    assert "? May fit</strong> The peak on rank 0, 84.9 GB, is 4.91 GB above the device" in planner.verdict.value
    assert "s error of 15 %: a dry run and a trial decide. On rank 0, torch reserves 119 GB, " in planner.verdict.value


def test_what_cannot_be_planned_says_why_keeps_the_plan_before_in_grey_and_recovers() -> None:
    planner = show_planner()
    planner.choose({"world_size": "12"})

    assert "✗ Cannot be planned</strong> 12 ranks on 8x H100 80GB, NVLink: that is one node" in planner.verdict.value
    assert planner.drawing.value.startswith("<div inert>")
    assert "Stage 3 on 8 ranks" in planner.drawing.value
    planner.choose({"tensor_parallel": "3"})
    assert "GPUs = 8 with Tensor parallel = 3 and Pipeline stages = 1: the ranks" in planner.verdict.value
    assert "Choose a multiple of it as GPUs." in planner.verdict.value
    planner.choose({"context_parallel": "3"})
    assert "Context parallel = 3 with ZeRO stage = 3: 8 ranks share states" in planner.verdict.value
    planner.choose({"world_size": "8"})
    assert "Fits" in planner.verdict.value
    assert "inert" not in planner.drawing.value


def test_every_setting_can_be_given() -> None:
    planner = show_planner(model="gpt2", sequence=512, optimizer="adam8bit", offload=["optimizer"], expandable=True)

    settings = planner.plan.settings
    assert (settings.sequence, settings.optimizer, settings.offload) == (512, "adam8bit", ("optimizer",))
    assert settings.expandable


def test_the_length_follows_the_model() -> None:
    planner = show_planner(model="gpt2")
    assert planner.plan.settings.sequence == 1024
    planner.choose({"model": "llama-405b"})
    assert planner.plan.settings.sequence == 4096


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpus": 8}, "setting='gpus'"),
        ({"model": "llama-8b"}, "model='llama-8b': there is no such model. Did you mean"),
        ({"world_size": 0}, "world_size=0: it has to be a whole number, from 1 to 1000000"),
        ({"stage": 4}, "stage=4: there is no such stage"),
        ({"tensor_parallel": 3}, "the ranks do not fall into groups of 3"),
    ],
)
def test_what_no_field_has_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        show_planner(**given)


def test_the_text_form_is_the_plans_page() -> None:
    planner = show_planner(model="gpt2")

    head, _, *rest = page(planner.plan, HARDWARE["h100"])
    assert repr(planner) == "\n\n".join([head, *rest, "Byte by byte: planner.plan.explain('h100')"])
    planner.choose({"world_size": "12"})
    assert repr(planner).startswith("Cannot be planned: 12 ranks on 8x H100")
    assert "a network, such as “nodes of 8x A100 80GB over InfiniBand”, “nodes of" in planner.verdict.value


# The fields


def test_there_is_a_labelled_field_for_each_setting() -> None:
    form = Planner().form

    names = {"model", "hardware", *(field.name for field in fields(Settings))}
    assert set(re.findall(r' name="(\w+)"', form)) == names
    assert {name for group in GROUPS.values() for name in group} <= names
    assert form.count('placeholder="automatic"') == [START[name] for name in names].count(None)
    for name in names:
        assert re.search(rf'<label[^>]*><span>[^<]+</span><input (type="number" )?name="{name}"', form) or re.search(
            rf'(<legend>|<span>)[^<]+(</legend><div><label><input type="radio"|</span><select) name="{name}"', form
        )


@pytest.mark.parametrize("name", START)
def test_a_fields_text_means_its_value(name: str) -> None:
    assert value(name, written(START[name])) == START[name]


CHOSEN = [
    {},
    {"model": "llama3-70b", "world_size": 64, "stage": 2, "hardware": "h100-infiniband"},
    {"attention": "math", "stage": 0, "sequence": 1024, "engine": "torch", "precision": "fp32"},
    {"offload": ("optimizer", "parameters"), "reshard": False, "prefetch": 0, "expandable": True, "shard_size": 4},
    {"trainable": 0.015, "frozen": "fp32", "bucket_bytes": 268435456},
    {"model": "mixtral-8x7b", "expert_parallel": 8, "capacity_factor": 1.25, "reshard": False, "fp8": "gathers"},
    {"lora_rank": 16, "adapted": "attention", "frozen": "nf4", "context_parallel": 2, "whole_logits": True},
]


@pytest.mark.parametrize("chosen", CHOSEN)
def test_an_address_is_a_plan_and_says_only_what_differs(chosen: dict[str, Any]) -> None:
    planner = Planner(**chosen)
    address = shown(Planner(), "&".join(f"{name}={written(setting)}" for name, setting in chosen.items()))["address"]
    again = Planner()
    assert again.show(f"#{address}")

    assert again.chosen == planner.chosen
    assert again.now == planner.now
    assert {part.partition("=")[0] for part in address.split("&") if part} == set(chosen)


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("world_size=many", "from 1 to 1000000. The setting stays 8."),
        ("world_size=-3", "GPUs = -3: it has to be a whole number, from 1 to 1000000. Try GPUs = 1."),
        ("world_size=1e99", "GPUs = '1e99': it has to be a whole number"),
        ("batch=", "Sequences of a micro-batch = '': it has to be a whole number"),
        ("sequence=0", "Try Tokens of a sequence = 1. The setting stays automatic."),
        ("model=llama-8b", "Did you mean 'llama3-8b'? The setting stays llama-7b."),
        ("gpus=8", "There is no setting 'gpus': it is left out."),
        ("trainable=some", "trainable some: it does not have this value. Give a number, such as 8 or 7e9."),
        ("reshard=always", "Reshard = 'always': there is no such reshard"),
        ("reshard=-1", "Reshard = '-1': there is no such reshard"),
    ],
)  # fmt: skip
def test_a_bad_value_in_an_address_gets_a_line_and_the_first_value(query: str, line: str) -> None:
    planner = Planner()
    planner.show(f"#{query}&stage=1")

    assert line in planner.notes[0]
    assert planner.now == Shown(plan(**FIRST | {"stage": 1}), HARDWARE["h100"])


@pytest.mark.parametrize("text", ["0", ""])
def test_a_field_that_cannot_be_read_keeps_its_value(text: str) -> None:
    planner = Planner(hardware="h100-infiniband")
    planner.show("world_size=64&stage=2")
    page = shown(planner, f"world_size={text}&stage=1")

    assert "The setting stays 64." in page["verdict"]
    assert "Stage 1 on 64 ranks" in page["plan"]
    assert page["address"] == "world_size=64&stage=1"


def test_a_field_that_cannot_be_read_keeps_its_value_even_where_that_cannot_be_planned() -> None:
    planner = Planner(hardware="h100")
    assert "Cannot be planned" in shown(planner, "world_size=12")["verdict"]
    page = shown(planner, "world_size=many")

    assert "The setting stays 12." in page["verdict"] and "Cannot be planned" in page["verdict"]
    assert "on 8 ranks" in page["plan"]


def test_it_says_what_changes_nothing_and_how_far_published_seconds_are() -> None:
    assert "Frozen = nf4 changes nothing" in shown(Planner(), "frozen=nf4")["verdict"]
    assert "0.5 to 10 times" in shown(Planner(), "model=qwen3-30b-a3b&world_size=8&expert_parallel=8")["verdict"]
    assert "2025" in Planner().verdict and "2025" not in shown(Planner(), "stage=2&engine=torch")["verdict"]


def test_hostile_text_is_shown_as_text() -> None:
    hostile = "<img src=x onerror=alert(1)>\"'&"
    planner = Planner()
    page = shown(planner, f"#model={hostile}&{hostile}=1&world_size={'9' * 10**5}")

    assert "&lt;img" in page["verdict"]
    assert "<img" not in page["verdict"] + page["plan"] + planner.form
    assert len(page["verdict"]) < 2000


# The bars


def bars(html: str, moment: str) -> list[float]:
    """Return where the blocks of a row end, and how wide its outline is, in percent of the axis."""
    row = re.search(rf"<span>{moment}</span>(.*?)</li>", html)
    assert row
    blocks = re.findall(r"left:([\d.]+)%;width:([\d.]+)%", row[1])
    outline = re.findall(r'class="plan-before" style="width:([\d.]+)%', row[1])
    return [float(left) + float(width) for left, width in blocks][-1:] + [float(width) for width in outline]


def test_bars_are_as_long_as_their_bytes_and_the_outline_is_the_plan_before() -> None:
    machine = HARDWARE["h100-infiniband"]
    now, before = (Shown(plan(params=7.5e9, world_size=64, stage=stage), machine) for stage in (3, 0))
    axes = ends(now, before, {})
    html = drawing(now, before, axes)

    assert axes["memory"] == 160e9
    assert bars(html, "between steps") == pytest.approx(
        [100 * 105 / 64 / 160, 100 * 105 / 160], abs=0.01
    )  # 14 bytes of each
    assert '<small style="left:50.000%">device: 80 GB</small>' in html
    assert "--device:50.00%" in html


def test_stage_0_and_stage_3_have_one_axis() -> None:
    planner = Planner(stage=0)
    first = shown(planner, "stage=0")["plan"]
    second = shown(planner, "stage=3")["plan"]

    (was,), (now, outline) = bars(first, "optimizer step"), bars(second, "optimizer step")
    assert outline == pytest.approx(was, abs=0.01)
    peak = [plan(**FIRST | {"stage": stage}).moments["optimizer step"] for stage in (0, 3)]
    assert now / was == pytest.approx(sum(peak[1].values()) / sum(peak[0].values()), rel=0.01)


def test_a_page_that_opens_at_an_address_has_no_plan_before() -> None:
    planner = Planner()
    planner.show("#stage=0", step=False)

    assert planner.before is None
    assert "the plan before" not in planner.drawing


def test_while_a_number_is_typed_the_outline_stays() -> None:
    planner = Planner(hardware="h100-infiniband")
    planner.show("stage=2")
    for text, step in (("", True), ("1", False), ("16", False)):  # one change, of 8 to 16
        planner.show(f"stage=2&world_size={text}", step)

    assert planner.now and planner.before
    settings = [shown.plan.settings for shown in (planner.before, planner.now)]
    assert [(one.stage, one.world_size) for one in settings] == [(2, 8), (2, 16)]


@pytest.mark.parametrize(
    ("needed", "earlier", "end"),
    [(136, 0, 160), (34, 160, 160), (161, 160, 320), (34, 800, 800), (34, 801, 160), (1000, 320, 1600)],
)
def test_an_axis_changes_only_if_it_must(needed: float, earlier: float, end: float) -> None:
    assert axis(160, needed, earlier) == end


def html(planned: Plan, machine: str = "h100") -> str:
    now = Shown(planned, HARDWARE[machine])
    return drawing(now, None, ends(now, None, {}))


def test_averaging_is_shown_where_an_engine_has_it() -> None:
    plans = (plan(model="gpt2", world_size=8, stage=1, engine=engine) for engine in ("paper", "zero"))

    assert ["<span>averaging</span>" in html(planned) for planned in plans] == [False, True]


@pytest.mark.parametrize("model", ["gpt2", "llama-405b", "gpt-oss-120b"])
def test_small_large_and_sparse_models_can_be_drawn(model: str) -> None:
    assert "The time of a step" in html(plan(model=model, world_size=16, stage=3), "h100-infiniband")


@pytest.mark.parametrize(
    "given",
    [
        {"model": "mixtral-8x7b", "expert_parallel": 8},
        {"tensor_parallel": 2, "context_parallel": 2, "whole_logits": True},
    ],
)
def test_what_experts_contexts_and_logits_move_is_drawn_as_what_it_is(given: dict[str, Any]) -> None:
    """Every legend and colour is that of parameters, gradients or activations."""
    drawn = html(plan(**{"model": "llama-7b", "world_size": 8, "stage": 2} | given))
    sent, time = drawn.split("Sent by each rank")[1].split("The time of a step")

    assert re.findall(r"</i>(\w+)</span>", sent) == ["gradients", "parameters", "activations"]
    assert re.findall(r"</i>(\w+) moved</span>", time) == ["parameters", "activations", "gradients"]
    logits = re.findall(r"background:([^\"]+)\" title=\"all_gather of logits", sent)
    assert set(logits) <= {CATEGORIES["activations"]}


def test_one_rank_sends_nothing() -> None:
    assert "<strong>0 bytes</strong><span>all together</span>" in html(plan(model="gpt2"), "laptop")


def test_what_is_on_the_host_has_a_row() -> None:
    planned = plan(model="gpt2", world_size=8, stage=3, offload=["optimizer"])

    assert f"<strong>{size(planned.host_bytes)}</strong><span>in the host&#x27;s memory</span>" in html(planned)
