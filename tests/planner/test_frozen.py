"""Frozen parameters: what is held, kept, sent and computed when only a part is trained, with numbers from paper."""

from dataclasses import replace

import pytest

from course_lib.planner import HARDWARE, MODELS, Transformer, plan
from course_lib.planner.memory.activations import layer
from course_lib.planner.memory.parts import END, FORWARD, START
from course_lib.planner.training.settings import Settings

SMALL = Transformer(
    name="small", layers=2, hidden=100, heads=10, kv_heads=5, ffn=300, vocab=1000, positions=0, context=1024,
    gated=True, dropout=False, tied=False, source="this test",
)  # fmt: skip
LAYER = 100 * 100 * 2 + 2 * 50 * 100 + 3 * 300 * 100 + 2 * 100
OUTER = 2 * 1000 * 100 + 100
ADAPTERS = 4 * ((100 + 100) * 2 + (50 + 100) * 2 + (300 + 100) * 3)
"""Rank 4: for each matrix of n x m, 4 (n + m)."""


def parts(**given: object) -> dict[str, int]:
    found = plan(**{"model": SMALL, "sequence": 10, "attention": "flash"} | given).parts
    return {part.name: part.nbytes for part in found}


def test_a_part_of_the_parameters_is_trained() -> None:
    """ZeRO paper: 2 + 2 + 12 bytes for each that is trained, 2 for each that is frozen."""
    held = plan(params=7e9, trainable=0.01).bytes

    assert held["gradients"] == 2 * 0.07e9
    assert held["optimizer"] == 12 * 0.07e9
    assert held["parameters"] == 2 * 7e9


def test_a_number_is_the_same_as_a_part() -> None:
    assert plan(params=7e9, trainable=7e7).bytes == plan(params=7e9, trainable=0.01).bytes


def test_all_is_the_default() -> None:
    assert plan(params=7e9, trainable=1.0).parts == plan(params=7e9).parts


def test_adapters_are_beside_the_model() -> None:
    held = parts(lora_rank=4)

    assert held["frozen parameters"] == 2 * plan(model=SMALL).model.params
    assert held["parameters"] == 2 * 2 * ADAPTERS
    assert held["fp32 master parameters"] == 4 * 2 * ADAPTERS
    assert held["states of adam"] == 8 * 2 * ADAPTERS


@pytest.mark.parametrize(("tensor", "params"), [(1, 207_093_760), (2, 140_247_040), (4, 106_823_680), (8, 90_112_000)])
def test_tensor_parallel_ranks_cut_one_of_an_adapters_two_matrices(tensor: int, params: int) -> None:
    """Of a matrix whose rows are cut, the first adapter is whole; of one whose columns are cut, the second.

    Llama 3 70B, rank 16, 80 layers: queries, keys, values, gate and up, then the attention's projection and down.
    """
    h, kv, f = 8192, 1024, 28672
    rows = sum(h + out / tensor for out in (h, kv, kv, f, f))
    assert 16 * 80 * (rows + (h / tensor + h) + (f / tensor + h)) == params
    cut = plan(model="llama3-70b", lora_rank=16, world_size=tensor, tensor_parallel=tensor)

    assert sum(part.nbytes for part in cut.parts if part.name == "states of adam") == 8 * params
    assert cut.piece.params == plan(model="llama3-70b", world_size=tensor, tensor_parallel=tensor).piece.params


def test_tensor_parallel_ranks_cut_the_columns_of_the_matrices_that_end_a_block() -> None:
    """SMALL on 5 ranks: 20 of 100 queries, 10 of 50 keys, 60 of 300 inside. Of experts, 4 of them on 4 ranks and 5."""
    cut = plan(model=SMALL, world_size=5, tensor_parallel=5).piece
    dense = ((100,), (20, 100), (10, 100), (10, 100), (100, 20), (100,), (60, 100), (60, 100), (100, 60))
    assert cut.units == (((200, 100), (100,), (200, 100)), dense, dense)

    experts = replace(SMALL, experts=8, chosen=2, shared_ffn=50)
    unit = plan(model=experts, world_size=10, tensor_parallel=5, expert_parallel=2).piece.units[1]
    assert unit[4:] == (
        (100, 20), (100,), (8, 100), (4, 60, 100), (4, 60, 100), (4, 100, 60), (10, 100), (10, 100), (100, 10)
    )  # fmt: skip
    gpt = replace(SMALL, gated=False, kv_heads=10, positions=50, tied=True)
    outer, layer, _ = plan(model=gpt, world_size=5, tensor_parallel=5, sequence=50).piece.units
    assert outer == ((200, 100), (10, 100), (100,), (100,))
    assert [shape for shape in layer if len(shape) > 1] == [(60, 100), (100, 20), (60, 100), (100, 60)]


@pytest.mark.parametrize(
    ("given", "far"), [({}, False), ({"world_size": 2}, False), ({"world_size": 2, "stage": 3}, True)]
)
def test_the_memory_of_sharded_adapters_has_a_caution(given: dict[str, int], far: bool) -> None:
    assert (
        "held 0.7 to 1.9 times the planned memory: see docs/limits.md."
        in repr(plan(model=SMALL, sequence=10, lora_rank=4, **given))
    ) == far


def test_litgpts_adapters() -> None:
    """Rank 8 on queries and values of Llama 2 7B: 4,194,304 trained parameters (LitGPT, resource tables)."""
    assert 32 * 2 * 8 * (4096 + 4096) == 4_194_304
    both = plan(model="llama-7b", lora_rank=8, adapted="attention")

    assert sum(part.nbytes for part in both.parts if part.name == "states of adam") == 8 * 2 * 4_194_304


@pytest.mark.parametrize(("frozen", "each", "other"), [("bf16", 2, 2), ("fp32", 4, 4), ("int8", 1, 2)])
def test_frozen_parameters_have_a_type_of_their_own(frozen: str, each: float, other: float) -> None:
    matrices = LAYER - 200

    assert parts(lora_rank=4, frozen=frozen)["frozen parameters"] == 2 * (each * matrices + 200 * other) + other * OUTER


def test_qlora_keeps_4_127_bits() -> None:
    """QLoRA, section 3: double quantization takes 0.127 bits a parameter: 8/64 + 32/(64 x 256)."""
    bits = 4 + 8 / 64 + 32 / (64 * 256)

    assert bits == pytest.approx(4.127, abs=1e-3)
    held = parts(lora_rank=4, frozen="nf4")
    assert held["frozen parameters"] == pytest.approx(2 * ((LAYER - 200) * bits / 8 + 400) + 2 * OUTER, abs=3)
    assert held["dequantized parameters"] == 2 * 300 * 100


def test_only_the_trained_are_reduced_and_all_are_gathered() -> None:
    calls = {call.op: call.total_bytes for call in plan(params=8e9, trainable=0.25, world_size=8, stage=3).collectives}

    assert calls["reduce_scatter"] == 2 * 2e9
    assert calls["all_gather"] == 2 * 8e9
    later = plan(params=8e9, trainable=0.25, world_size=8, stage=1).collectives
    assert [(call.op, call.total_bytes) for call in later] == [("reduce_scatter", 4e9), ("all_gather", 4e9)]


def test_a_shard_of_frozen_parameters() -> None:
    assert parts(lora_rank=4, world_size=4, stage=3)["frozen parameters"] == pytest.approx(
        2 * plan(model=SMALL).model.params / 4, abs=4
    )


def test_quantized_parameters_are_gathered_as_they_are() -> None:
    """The units in use: the outer one in 16 bits, and two layers."""
    matrices = 2 * (LAYER - 200) * (0.5 + 1 / 64 + 4 / (64 * 256))
    held = plan(model=SMALL, sequence=10, lora_rank=4, frozen="nf4", world_size=4, stage=3).parts
    largest = max(part.nbytes for part in held if part.name == "gathered parameters")

    assert largest == pytest.approx(2 * OUTER + matrices + 800 + 2 * 2 * ADAPTERS, abs=2)


def test_inputs_of_frozen_matrices_are_not_kept() -> None:
    """Without adapters in the feed-forward layer its input, 2 x 100 bytes, and product, 2 x 300, are not needed."""
    given = {"attention": "flash", "sequence": 10, "lora_rank": 4}
    everywhere, attention = (layer(SMALL, Settings(**given, adapted=where)) for where in ("all", "attention"))

    assert sum(everywhere.values()) - sum(attention.values()) == 2 * 100 + 2 * 300
    assert sum(everywhere.values()) == sum(layer(SMALL, Settings(attention="flash", sequence=10)).values())


def copies(what: str, **given: object) -> dict[str, int]:
    found = plan(model=SMALL, precision="autocast", **given).parts
    return {part.moments[0]: part.nbytes for part in found if part.name == f"autocast's copies of {what} matrices"}


def test_autocast_copies_matrices_in_fp32() -> None:
    """2 bytes each until their backward; a layer that is computed again makes its copies then."""
    matrices, head = 2 * (LAYER - 200), 2 * 1000 * 100
    every = {FORWARD: 2 * matrices + head, START: 2 * matrices, END: matrices}

    assert copies("frozen", lora_rank=4, frozen="fp32") == every
    assert copies("trained", lora_rank=4) == {FORWARD: 4 * ADAPTERS, START: 4 * ADAPTERS, END: 2 * ADAPTERS}
    assert copies("trained", trainable=0.25) == {moment: nbytes / 4 for moment, nbytes in every.items()}
    assert copies("frozen", trainable=0.25, frozen="fp32")[FORWARD] == 0.75 * every[FORWARD]
    assert copies("frozen", lora_rank=4) == copies("frozen", trainable=0, frozen="fp32") == {}
    again = copies("frozen", lora_rank=4, frozen="fp32", checkpointing="full")
    assert again == {FORWARD: head, START: matrices, END: matrices}


def test_a_frozen_embedding_decides_how_wide_the_residual_stream_is() -> None:
    given = {"attention": "flash", "sequence": 10, "lora_rank": 4, "precision": "autocast"}
    wide, narrow = (layer(SMALL, Settings(**given, frozen=frozen)) for frozen in ("fp32", "bf16"))

    assert (wide["inputs of the two norms"], narrow["inputs of the two norms"]) == (2 * 400, 2 * 200)


def flops(**given: object) -> tuple[float, float]:
    planned = plan(**{"model": replace(SMALL, vocab=1), "sequence": 10} | given)
    fast = replace(HARDWARE["h100"], memory_bandwidth=1e30, fast_flops=1e12, achievable=1.0, attention=1e30)
    spans = planned.timeline(fast).spans
    return tuple(
        1e12 * sum(one.seconds for one in spans if one.name.startswith(f"{when} layer"))
        for when in ("forward", "backward")
    )


def test_frozen_matrices_have_no_gradients() -> None:
    """2 FLOPs a parameter and token forward; backward 2 for the input's gradient, and 2 for the weight's if trained."""
    matrices, tokens = 2 * (LAYER - 200), 10

    assert flops() == pytest.approx((2 * matrices * tokens, 4 * matrices * tokens))
    assert flops(trainable=0.25) == pytest.approx((2 * matrices * tokens, 2.5 * matrices * tokens), rel=1e-2)
    forward, backward = flops(lora_rank=4)
    assert forward == pytest.approx(2 * (matrices + 2 * ADAPTERS) * tokens, rel=2e-3)
    assert backward == pytest.approx((2 * matrices + 4 * 2 * ADAPTERS) * tokens, rel=4e-3)
    assert flops(lora_rank=4, checkpointing="full")[1] == pytest.approx(backward + forward)


def test_almost_all_trained_takes_as_long_as_all() -> None:
    """The head's weights have gradients, too."""
    given = {"model": SMALL, "sequence": 10, "attention": "flash"}
    most, everything = (
        plan(**given, trainable=share).timeline("h100").busy("compute") for share in (0.9999, 1)
    )  # fmt: skip

    assert most == pytest.approx(everything, rel=1e-3)


def test_useful_flops_are_four_and_six_a_parameter() -> None:
    """mfu x peak / (tokens a second) are the FLOPs of a token."""

    def of_a_token(**given: object) -> float:
        planned = plan(params=1e9, **given)
        return planned.mfu("h100") * 989e12 / planned.tokens_per_second("h100")

    assert of_a_token() == pytest.approx(6e9)
    assert of_a_token(trainable=0.25) == pytest.approx(4.5e9)
    assert of_a_token(trainable=0) == pytest.approx(2e9)


def test_a_reference_model_only_computes_forward() -> None:
    reference = plan(model="llama3-8b", trainable=0, world_size=8, stage=3, engine="torch", sequence=4096)

    assert {call.op for call in reference.collectives} == {"all_gather"}
    assert reference.bytes["gradients"] == reference.bytes["optimizer"] == 0
    assert reference.bytes["activations"] == 4096 * (4 * 128256 + 2 * 2 * 4096)
    assert not [span for span in reference.timeline("h100").spans if "backward" in span.name]


def test_quantized_matrices_are_unpacked_for_each_pass() -> None:
    """Read in 4 bits, written and read in 16: about 4.516 bytes of traffic for each parameter of a layer."""
    given = {"lora_rank": 4, "model": replace(SMALL, hidden=100)}
    machine = replace(HARDWARE["h100"], memory_bandwidth=1e9, fast_flops=1e30)
    slow, fast = (
        sum(one.seconds for one in plan(**given, sequence=10, attention="flash", frozen=frozen).timeline(machine).spans
            if one.name.startswith("forward layer"))
        for frozen in ("nf4", "bf16")
    )  # fmt: skip

    assert slow - fast == pytest.approx(2 * LAYER * (0.5 + 1 / 64 + 4 / (64 * 256) + 4) / 1e9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trainable": -0.1}, "trainable=-0.1, lora_rank=0: a part of the parameters is trained, from 0 to 1"),
        ({"trainable": "all"}, "trainable='all', lora_rank=0: a part of the parameters is trained"),
        ({"trainable": 0.1, "lora_rank": 8}, "Give one of the two"),
        ({"trainable": 9e9}, "trainable=9000000000.0: it has to be a whole number, from 1 to 7000000000"),
        ({"lora_rank": 8}, "adapters need the matrices of layers. Give a model, or trainable=0.01"),
        ({"trainable": 0.1, "engine": "zero"}, "this course's shards hold what is trained. Choose trainable=1"),
        ({"trainable": 0.1, "frozen": "fp4"}, "frozen='fp4': there is no such frozen"),
    ],
)
def test_what_cannot_be_trained_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(params=7e9, **given)


def test_frozen_parameters_leave_no_gaps() -> None:
    """torch reserves 18 % more than what comes and goes, and nothing for what is allocated once."""
    held = plan(model=MODELS["llama-7b"], lora_rank=8, engine="torch", precision="bf16", sequence=1304)
    still = 2 * held.model.params

    late = 2 * 32 * 8 * (4 * (4096 + 4096) + 3 * (4096 + 11008))  # gradients of the adapters, after the peak
    assert held.reserved_bytes - still == pytest.approx(1.18 * (held.active_bytes - still + late), rel=1e-6)


def test_useful_flops_count_attention() -> None:
    """12 L h s a token, a third of it without backward."""
    for trainable, useful in ((1, 12), (0.5, 12), (0, 4)):
        planned = plan(model=SMALL, sequence=10, trainable=trainable)
        of_a_token = planned.mfu("h100") * 989e12 / planned.tokens_per_second("h100")
        matrices = {1: 6, 0.5: 5, 0: 2}[trainable] * planned.model.params
        assert of_a_token == pytest.approx(matrices + useful * 2 * 100 * 10, rel=1e-4)


def test_of_a_quantized_model_it_says_how_far_published_runs_were() -> None:
    text = repr(plan(model="llama3-8b", world_size=1, stage=0, lora_rank=8, frozen="nf4"))
    assert "adapters on a model in 4 or 8 bits held up to 1.9 times the planned memory" in text


def test_litgpts_gemma_held_1_9_times_the_planned_memory() -> None:
    """Its config_hub/finetune/README.md: 20.92 GB on an A10G."""
    gemma = Transformer(
        name="Gemma 2 9B", layers=42, hidden=3584, heads=16, kv_heads=8, ffn=14336, vocab=256000, head_size=256,
        positions=0, context=8192, gated=True, dropout=False, tied=True, source="google/gemma-2-9b",
    )  # fmt: skip
    planned = plan(
        model=gemma, engine="torch", precision="bf16", sequence=512, attention="flash", optimizer="adamw",
        implementation="foreach", loss="fused", lora_rank=16, frozen="nf4",
    )  # fmt: skip
    assert 20.92e9 / planned.peak_bytes == pytest.approx(1.92, abs=0.01)
