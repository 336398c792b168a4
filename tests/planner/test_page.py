"""A plan as a page: what it assumes, what a rank holds, and what it takes on each machine."""

from dataclasses import replace
from typing import Any

import pytest

from course_lib.planner import HARDWARE, MODELS, choose, costs, duration, page, plan, size, units, verdict

GIVEN = {"model": "llama3-8b", "world_size": 8, "stage": 3, "attention": "flash"}


@pytest.mark.parametrize(("nbytes", "text"), [(999.4e6, "999 MB"), (999.6e6, "1,000 MB"), (1e9, "1 GB")])
def test_a_size_below_the_next_unit_has_no_exponent(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


def test_the_page_of_the_largest_model_is_a_page() -> None:
    text = repr(plan(model="llama-405b"))
    assert len(text) < 2500 and len(text.splitlines()) < 40


@pytest.mark.parametrize("shown", [lambda: plan(model="llama-405b").model, lambda: choose("llama-405b", "h100")])
def test_neither_a_model_nor_a_choice_prints_its_shapes(shown) -> None:  # type: ignore[no-untyped-def]
    assert "(53248, 16384)" not in repr(shown())


def test_it_says_first_what_nobody_gave() -> None:
    bare, given = (repr(plan(model="llama3-8b", **more)).split("\n\n") for more in (
        {}, {"sequence": 4096, "attention": "flash", "engine": "torch", "stage": 3, "micro_batches": 2}))  # fmt: skip

    assert bare[1].startswith("Assumed, as by default: sequence=1024, attention=math, engine=paper, precision=mixed,")
    assert given[1].startswith("Assumed, as by default: precision=mixed, optimizer=adam,")
    assert "micro_batches" not in given[1]
    explained = plan(model="llama3-8b").explain().splitlines()
    assert explained[1] == bare[1] and explained[0] == bare[0]


def test_its_memory_adds_up() -> None:
    planned = plan(**GIVEN, sequence=4096)
    table = [line.split("  ") for line in repr(planned).split("\n\n")[2].splitlines()]
    held = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in table[1:]}

    assert f"at the peak, {planned.peak_moment}" in repr(planned)
    assert held["all"] == [size(planned.peak_bytes), size(sum(planned.moments["between steps"].values()))]
    for category, nbytes in planned.moments[planned.peak_moment].items():
        assert (size(nbytes) in held[category]) if nbytes else category not in held
    assert f"it takes {size(planned.reserved_bytes)} on the device." in repr(planned)


def test_it_has_each_machine_that_has_a_place_for_the_ranks() -> None:
    one, many, odd = (repr(plan(**GIVEN | {"world_size": ranks})) for ranks in (8, 64, 100))

    assert "\nh100  " in one and "\nrtx-4090  " not in one
    assert "\nh100-infiniband  " in many and "\nh100  " not in many
    assert odd.endswith("No machine by name has whole nodes for 100 ranks.")


def test_costs_are_those_of_the_plan() -> None:
    planned, machine = plan(**GIVEN, sequence=4096), HARDWARE["h100"]
    free = machine.memory_bytes - planned.reserved_bytes

    assert costs(planned, machine) == (
        f"fits, {size(free)} free", duration(planned.step_seconds(machine)),
        f"{planned.tokens_per_second(machine):,.0f}", f"{planned.mfu(machine):.1%}",
    )  # fmt: skip
    small = replace(machine, memory_bytes=10**10)
    assert costs(planned, small)[0] == f"{verdict(planned, small)}, {size(planned.reserved_bytes - 10**10)} short"
    number = plan(params=7e9, world_size=8, stage=3, offload=["optimizer", "parameters"])
    assert costs(number, machine)[0] == "fits without activations, 79.8 GB free"


def test_of_one_machine_it_says_what_does_not_fit() -> None:
    short, room = plan(model="llama-70b", world_size=8, stage=3), plan(**GIVEN)

    assert " short on rank 0, " in "".join(page(short, HARDWARE["h100"]))
    assert " short on rank 0, " not in "".join(page(room, HARDWARE["h100"]))
    with pytest.raises(ValueError, match="64 ranks on 8x H100 80GB, NVLink: that is one node"):
        list(page(plan(**GIVEN | {"world_size": 64}), HARDWARE["h100"]))


def test_of_a_pipeline_it_says_which_stage_holds_most() -> None:
    """Of Llama 3 8B the last stage has the logits; of gpt-oss, the second of 8 has 5 of 36 layers, the first 4."""
    given = {"stage": 1, "pipeline_parallel": 8, "micro_batches": 16, "checkpointing": "full", "attention": "flash"}
    for model, fullest, said in (("llama3-8b", 7, "The last stage"), ("gpt-oss-120b", 1, "Pipeline stage 1")):
        planned, more = (plan(model=model, world_size=64, pipeline_stage=at, **given) for at in (0, fullest))
        sentence = f"{said} holds more: at most {size(more.peak_bytes)}."

        assert sentence in repr(planned) and sentence in planned.explain() and "no rank holds" not in planned.explain()
        small = replace(HARDWARE["h100-infiniband"], memory_bytes=planned.reserved_bytes)
        assert f" short on {said[0].lower()}{said[1:]}, " in "".join(page(planned, small))
    assert "held by the last stage" in repr(plan(model="llama3-8b", world_size=64, pipeline_stage=7, **given))


def test_every_stage_gives_the_verdict_of_the_whole_pipeline() -> None:
    """The first of four stages keeps activations of four micro-batches: it holds most."""
    given = {"model": "llama3-70b", "world_size": 32, "stage": 1, "sequence": 4096, "attention": "flash"}
    cut = {"tensor_parallel": 8, "pipeline_parallel": 4, "micro_batches": 8, "batch": 3}
    stages = [plan(**given, **cut, pipeline_stage=at) for at in range(4)]
    machine = replace(HARDWARE["h100-infiniband"], memory_bytes=stages[0].reserved_bytes - 10**9)

    assert {verdict(stage, machine) for stage in stages} == {"may fit"}
    for stage in stages[1:]:
        text = "".join(page(stage, machine))
        assert f"Rank 0 holds more: at most {size(stages[0].peak_bytes)}." in text
        assert "It may fit: 1 GB short on rank 0, " in text


def test_the_stage_that_takes_most_decides_whether_a_pipeline_fits() -> None:
    """The second of three stages has the highest peak. The last one's logits leave gaps: it takes more."""
    given = {"model": "llama-13b", "world_size": 6, "stage": 1, "sequence": 4096, "attention": "flash", "batch": 4}
    cut = {"tensor_parallel": 2, "pipeline_parallel": 3, "precision": "autocast", "checkpointing": "full"}
    first, second, last = (plan(**given, **cut, pipeline_stage=at) for at in range(3))
    assert second.peak_bytes > last.peak_bytes and last.reserved_bytes > second.reserved_bytes

    machine = replace(HARDWARE["a100"], memory_bytes=last.reserved_bytes - 10**9)
    text = "".join(page(first, machine))
    assert f"Pipeline stage 1 holds more: at most {size(second.peak_bytes)}." in text
    assert verdict(first, machine) == "may fit" and "It may fit: 1 GB short on the last stage, " in text
    assert verdict(first, replace(machine, memory_bytes=last.reserved_bytes)) == "fits"


EXPERTS, OFFLOAD = "took 0.5 to 10 times the planned seconds", "with offload took 0.4 to 5 times"


def test_wherever_seconds_are_shown_it_says_how_far_published_ones_are() -> None:
    known = plan(**GIVEN)
    given = GIVEN | {"model": "qwen3-30b-a3b"}
    later = duration(known.step_seconds(replace(HARDWARE["h100"], achievable=0.75, attention=0.6)))

    assert f"a step may take {later}." in known.explain("h100") and "2025" not in known.explain("a100")
    waits = plan(**GIVEN | {"model": "gpt2", "world_size": 1024})
    assert "full power, a step takes as long." in waits.explain("h100-infiniband")
    assert "With that of 2025 and full power, steps may take 0.98 times as long." in repr(known)
    for text in (
        repr(plan(**given)),
        plan(**given).explain("a100"),
        plan(**given, offload=["optimizer"]).explain("h100"),
    ):
        assert EXPERTS in text and "2025" not in text
    assert OFFLOAD in plan(**given, offload=["optimizer"]).explain("h100")
    assert OFFLOAD in plan(**GIVEN, offload=["optimizer"]).explain("a100")
    assert "PyTorch on B200 took 1.7 times" in plan(**GIVEN, engine="torch").explain("b200")
    assert "\n".join(page(known, HARDWARE["a100"])).count("planned seconds") == 0
    assert "on RTX 4090 took 0.57 to 0.87 times" in repr(plan(**GIVEN | {"world_size": 4}))
    assert "Seconds on H100 and newer GPUs are" in "".join(page(known, HARDWARE["a100"], HARDWARE["h100"]))


def test_the_same_is_a_card_in_a_notebook() -> None:
    planned = plan(params=7.5e9, world_size=64, stage=2, offload=["optimizer"])
    card = planned._repr_html_()

    assert card.startswith('<div class="course-widget"><div class="course-card"><pre>')
    assert repr(planned) in card
    assert f"Each rank holds {size(planned.host_bytes)} on the host." in card
    assert "Only the number of parameters is known" in card


@pytest.mark.parametrize(
    ("given", "machine", "said"),
    [
        ({"world_size": 4}, "h100", "Each rank holds 24.5 GB on the host, 98 GB for the 4 ranks that share it."),
        ({"world_size": 16}, "h100-infiniband", "Each rank holds 6.12 GB on the host, 49 GB for the 8 ranks that"),
        ({"world_size": 1}, "h100", "Each rank holds 98 GB on the host. "),
        ({"world_size": 4, "pipeline_parallel": 4, "stage": 1}, "h100", "Rank 0 holds 21 GB on the host. "),
    ],
)
def test_what_the_ranks_of_a_node_hold_on_its_host(given: dict[str, Any], machine: str, said: str) -> None:
    planned = plan(**{"params": 7e9, "stage": 3, "offload": ["optimizer"]} | given)
    assert said in "\n".join(page(planned, HARDWARE[machine]))


@pytest.mark.parametrize("cut", ["tensor_parallel", "pipeline_parallel", "context_parallel"])
def test_a_number_of_parameters_says_that_ranks_exchange_more(cut: str) -> None:
    """A number says nothing of layers, so the activations that ranks exchange are unknown, not 0 bytes."""
    note = "The plan also leaves out the activations that ranks exchange: they send more, and a step takes longer."
    planned, whole = (plan(params=7e9, world_size=8, **given) for given in ({cut: 8}, {}))

    for text in (repr(planned), planned.explain("h100")):
        assert note in text
        assert "sends at least " in text or "in a step: at least " in text
    assert "Each rank sends 24.5 GB in a step." in repr(whole) and note not in repr(whole)
    assert "at least" not in repr(plan(model="llama-7b", world_size=8, **{cut: 8}))


def test_units_and_what_a_layer_keeps() -> None:
    """Llama 3 8B's layer has 218,112,000 parameters, its outer unit 1,050,677,248; 1 x 1024 tokens."""
    text = "\n".join(units(plan(**GIVEN)))
    model = MODELS["llama3-8b"]

    assert "a layer, 436 MB, or what is outside the layers, 2.1 GB. If the whole model were one part, it" in text
    cut = "\n".join(units(plan(**GIVEN, tensor_parallel=2)))
    assert "If this rank's piece of the model were one part, it would gather all 8.03 GB at once." in cut
    assert f"{size(1024 * 4 * model.ffn * 2)}  inside of the feed-forward layer" in text
    assert "A layer keeps 8.39 MB of a micro-batch's" in "\n".join(units(plan(**GIVEN, checkpointing="full")))
    assert list(units(plan(params=7e9))) == []
    assert len(list(units(plan(params=[(512, 512)])))) == 1


def test_it_names_what_is_trained_and_how_the_model_is_cut() -> None:
    lora = plan(**GIVEN, lora_rank=16, frozen="nf4")
    part = plan(**GIVEN | {"sequence": 8192}, context_parallel=2, trainable=0.25)
    more = plan(**GIVEN, fp8="gathers", reshard=4, micro_batches=2, no_sync=True)
    idle = repr(plan(**GIVEN | {"stage": 2}, frozen="nf4", adapted="attention", reshard=False, no_sync=True,
                     prefetch=2, sequence_parallel=False))  # fmt: skip

    assert repr(lora).startswith(
        "Llama 3.1 8B: 8,030,261,248 parameters; stage 3 on 8 ranks, LoRA 16, mixed, adam, frozen in nf4."
    )
    assert "stage 3 on 8 ranks, mixed, fp8 gathers, adam, reshard 4, no_sync." in repr(more)
    assert "stage 2 on 8 ranks, mixed, adam." in idle
    for one in (
        "frozen=nf4", "adapted=attention", "reshard=False", "no_sync=True", "prefetch=2", "sequence_parallel=False"
    ):  # fmt: skip
        assert f"{one} changes nothing: " in idle
    assert "stage 3 on 8 ranks, CP 2, 0.25 of it trained, mixed, adam." in repr(part)


def test_of_experts_it_names_the_parameters_that_compute_a_token() -> None:
    """8 experts of which 2 are chosen: 6 of 3 x 4096 x 14336 elements are idle in each of 32 layers."""
    mixtral = replace(MODELS["llama3-8b"], experts=8, chosen=2)
    planned = plan(model=mixtral, world_size=8, stage=3, expert_parallel=4)
    active = planned.model.params - 6 * 3 * 4096 * 14336 * 32

    assert f"{planned.model.params:,} parameters, {active:,} for each token; stage 3 on 8 ranks, EP 4," in repr(planned)


def test_it_says_which_pieces_of_a_pipeline_do_not_exist() -> None:
    def head(stages: int, chunks: int, micro_batches: int = 8) -> str:
        cut = {"pipeline_parallel": stages, "model_chunks": chunks, "micro_batches": micro_batches}
        return repr(plan(model="llama3-8b", world_size=8, **cut))

    assert "model_chunks=3 changes nothing: there is one stage." in head(1, 3)
    assert "micro_batches=6 is not a multiple of the 4 stages, which interleaving needs" in head(4, 2, 6)
    assert "is not a multiple" not in head(4, 2) + head(4, 1, 6) + head(1, 2, 6)
    assert "32 layers do not divide into 4 x 3 parts: Megatron-LM needs a --pipeline-model" in head(4, 3)
    assert "pieces:" not in head(4, 2) + head(1, 1) and "changes nothing" not in head(4, 2) + head(1, 1)


def test_units_of_frozen_parameters_are_as_wide_as_they_are_kept() -> None:
    """The layers' matrices in 4 bits and constants, the outer unit in 16."""
    text = "\n".join(units(plan(**GIVEN, lora_rank=16, frozen="nf4")))
    assert "a layer, 11" in text


def test_bytes_have_a_unit_that_fits_their_number() -> None:
    assert [size(0), size(1), size(2), size(31.4e9)] == ["0 bytes", "1 byte", "2 bytes", "31.4 GB"]
