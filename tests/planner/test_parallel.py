"""Tensor, sequence and pipeline parallelism, and micro-batches: what a rank holds, sends and waits for."""

from dataclasses import replace

import pytest

from course_lib.planner import (
    HARDWARE,
    MODELS,
    Group,
    Link,
    Settings,
    Transformer,
    plan,
    ring_seconds,
    seconds,
    verdict,
)
from course_lib.planner.timing.schedule import COMPUTE, PIPELINE, TENSOR
from course_lib.planner.training.pieces import stage_layers

GIVEN = {"model": "llama3-8b", "world_size": 64, "attention": "flash", "sequence": 4096}
MACHINE = "h100-infiniband"


def parts(**given: object) -> dict[str, int]:
    return {part.name: part.nbytes for part in plan(**GIVEN | given).parts}


def test_the_stable_call() -> None:
    planned = plan(params=7.5e9, world_size=64, stage=2, tensor_parallel=4, pipeline_parallel=2, micro_batches=8)

    assert planned.settings.data_parallel == 8
    assert planned.bytes["parameters"] == 2 * 7.5e9 / 8


def test_a_rank_holds_a_part_of_each_matrix_and_whole_norms() -> None:
    whole, part = (plan(**GIVEN, tensor_parallel=tensor).piece for tensor in (1, 4))
    norms = (2 * 32 + 1) * 4096

    assert part.params - norms == (whole.params - norms) // 4


def test_a_pipelines_stages_hold_each_layer_once() -> None:
    pieces = [plan(**GIVEN, pipeline_parallel=8, pipeline_stage=stage).piece for stage in range(8)]

    assert sum(piece.params for piece in pieces) == plan(**GIVEN).model.params


def stages(layers: int, count: int, **given: object) -> list[int]:
    settings = Settings(world_size=count, pipeline_parallel=count, **given)
    return stage_layers(replace(MODELS["llama-405b"], layers=layers), settings)


@pytest.mark.parametrize(("layers", "count"), [(128, 64), (105, 35), (72, 12), (32, 4)])
def test_stages_are_equal_where_layers_divide(layers: int, count: int) -> None:
    """GPT-1T and GPT-530B (Korthikanti et al., table 3), a model of BLOOM's search, Llama 3 8B."""
    assert stages(layers, count) == [layers // count] * count


@pytest.mark.parametrize(
    ("layers", "count", "expected"),
    [(126, 16, [7, *[8] * 14, 7]), (126, 8, [15, *[16] * 6, 15]), (32, 5, [6, 7, 7, 7, 5]), (2, 4, [0, 1, 1, 0])],
)
def test_embedding_and_head_count_as_layers_where_layers_do_not_divide(
    layers: int, count: int, expected: list[int]
) -> None:
    """Llama 3 405B on 16 stages as its paper says (section 3.3.2), and what torchtitan gives the first stages."""
    assert stages(layers, count) == expected
    assert sum(expected) == layers


@pytest.mark.parametrize(
    ("count", "layers"),
    [(2, [10, 6]), (4, [5, 5, 5, 1]), (8, [3, 2, 3, 2, 3, 2, 1, 0])],
)
def test_nanotrons_stages_count_the_head_as_layers(count: int, layers: list[int]) -> None:
    """The 1B model's head has as many parameters as 4 of its 16 layers: a whole stage of 8, with the last norm."""
    settings = Settings(world_size=count, pipeline_parallel=count, engine="nanotron")

    assert stage_layers(MODELS["playbook-1b"], settings) == layers


@pytest.mark.parametrize(("name", "fine", "idle"), [("playbook-1b", 8, 16), ("playbook-3b", 16, 32)])
def test_a_stage_of_nothing_is_refused(name: str, fine: int, idle: int) -> None:
    """The head is several layers' work in one block, so that the blocks run out before the stages."""
    plan(model=name, engine="nanotron", world_size=fine, pipeline_parallel=fine)

    with pytest.raises(ValueError, match=f"do not fill {idle} parts"):
        plan(model=name, engine="nanotron", world_size=idle, pipeline_parallel=idle)


def test_gpt_1t_with_selective_recomputation_may_fit_80_gb() -> None:
    """It ran on A100s (Korthikanti et al., tables 3 and 5): 2 of 128 layers on each of 64 stages."""
    gpt = Transformer(
        name="GPT-1T", layers=128, hidden=25600, heads=160, kv_heads=160, ffn=4 * 25600, vocab=51200, positions=2048,
        context=2048, gated=False, dropout=True, tied=True, source="arXiv 2205.05198, table 3",
    )  # fmt: skip
    planned = plan(
        model=gpt, world_size=512, tensor_parallel=8, pipeline_parallel=64, micro_batches=512, sequence=2048,
        checkpointing="selective", loss="parallel", implementation="fused", precision="mixed_fp32_accumulation",
    )  # fmt: skip

    assert verdict(planned, HARDWARE["a100-infiniband"]) == "may fit"


@pytest.mark.parametrize(("chunks", "stage", "flights"), [(1, 0, 4), (1, 3, 1), (2, 0, 5.5), (2, 3, 2.5)])
def test_micro_batches_in_flight(chunks: int, stage: int, flights: float) -> None:
    given = {"pipeline_parallel": 4, "micro_batches": 16, "model_chunks": chunks, "pipeline_stage": stage}
    one = parts(pipeline_parallel=4, pipeline_stage=stage)["activations of the layers"]

    assert parts(**given)["activations of the layers"] == flights * one


def test_without_a_pipeline_one_micro_batch_is_in_flight() -> None:
    assert parts(model_chunks=2)["activations of the layers"] == parts()["activations of the layers"]


def test_a_bias_is_cut_like_its_matrix_and_what_joins_the_residual_stream_is_whole() -> None:
    """GPT-2: 3h of queries, keys and values and 4h of the feed-forward layer; two biases and four norms of h."""
    layer = plan(model="gpt2", world_size=4, tensor_parallel=4).piece.units[1]

    assert sum(size for size, *more in layer if not more) == 7 * 768 // 4 + 6 * 768


def test_the_last_stages_copy_of_a_tied_embedding_has_one_gradient() -> None:
    last = plan(model="gpt2", world_size=2, pipeline_parallel=2, pipeline_stage=1).piece

    assert (last.tied, last.early) == (0, 2 * 768 + 50257 * 768)


def test_only_the_last_stage_has_logits() -> None:
    first, last = (parts(pipeline_parallel=4, pipeline_stage=stage) for stage in (0, 3))

    assert "logits" not in first
    assert last["logits"] == 4 * 4096 * 128256


def test_gradients_are_kept_between_micro_batches() -> None:
    one, several = (plan(**GIVEN, micro_batches=count).moments["end of forward"]["gradients"] for count in (1, 4))

    assert (one, several) == (0, 2 * plan(**GIVEN).model.params)


@pytest.mark.parametrize(("loss", "each"), [("torch", 12), ("fused", 4), ("parallel", 10), ("chunked", 0)])
def test_the_logits_and_the_loss(loss: str, each: float) -> None:
    held = parts(loss=loss)

    names = ("logits", "logits and their gradients", "gradients of the logits")
    assert sum(held.get(name, 0) for name in names) == each * 4096 * 128256


# What is sent


def sent(**given: object) -> dict[tuple[str, str, str], int]:
    return {(c.group, c.op, c.when): c.total_bytes for c in plan(**GIVEN | given).collectives}


def test_sequence_parallelism_sends_as_much_as_all_reduces_and_gathers_once_more() -> None:
    """Two blocks in each of 32 layers, 4,096 tokens of 4,096 elements of 2 bytes."""
    tokens = 2 * 32 * 4096 * 4096 * 2

    assert sent(tensor_parallel=8, sequence_parallel=False)["tensor", "all_reduce", "forward"] == tokens
    calls = sent(tensor_parallel=8)
    assert calls["tensor", "all_gather", "forward"] == calls["tensor", "reduce_scatter", "forward"] == tokens
    assert calls["tensor", "all_gather", "backward"] == 2 * tokens


def test_torchs_modules_keep_what_sequence_parallelism_gathers() -> None:
    """What enters queries and feed-forward layer is whole: 4,096 tokens of 4,096 elements of 2 bytes, not in 8."""
    tokens, given = 4096 * 4096 * 2, {"stage": 3, "tensor_parallel": 8, "compiled": True}
    paper, torch = (parts(**given, engine=engine)["activations of the layers"] for engine in ("paper", "torch"))

    assert torch - paper == 32 * 2 * tokens * 7 / 8
    assert sent(**given, engine="torch")["tensor", "all_gather", "backward"] == 2 * 32 * tokens


def test_stages_send_a_micro_batchs_activations() -> None:
    assert sent(pipeline_parallel=4, micro_batches=8)["stage", "send", "forward"] == 8 * 4096 * 4096 * 2


def test_the_ends_of_a_pipeline_send_one_way() -> None:
    def sends(**given: object) -> dict[str, int]:
        found = sent(pipeline_parallel=4, **given)
        return {when: found.get(("stage", "send", when), 0) // (4096 * 4096 * 2) for when in ("forward", "backward")}

    assert [sends(pipeline_stage=stage) for stage in (0, 1, 3)] == [
        {"forward": 1, "backward": 0}, {"forward": 1, "backward": 1}, {"forward": 0, "backward": 1},
    ]  # fmt: skip
    assert sends(model_chunks=2) == {"forward": 2, "backward": 1}


def test_stage_3_gathers_and_reduces_for_each_micro_batch() -> None:
    once, again = (plan(**GIVEN, stage=3, micro_batches=count).sent_bytes for count in (1, 4))

    assert again == pytest.approx(4 * once)
    assert plan(**GIVEN, stage=1, micro_batches=4).sent_bytes == plan(**GIVEN, stage=1).sent_bytes


# How long it takes


def test_a_pipeline_waits_for_its_other_stages() -> None:
    """Narayanan et al.: (p - 1) / m of the ideal time, a `model_chunks`-th of that if interleaved.

    That holds for equal stages: here the head is small.
    """
    given = GIVEN | {"pipeline_parallel": 4, "micro_batches": 12, "model": replace(MODELS["llama3-8b"], vocab=1000)}
    plain, chunks = (plan(**given, model_chunks=count).timeline(MACHINE) for count in (1, 2))
    computed = plain.busy(COMPUTE)

    assert plain.exposed(PIPELINE, COMPUTE) == pytest.approx(3 / 12 * computed, rel=0.05)
    assert chunks.exposed(PIPELINE, COMPUTE) == pytest.approx(plain.exposed(PIPELINE, COMPUTE) / 2, rel=0.05)


def test_computing_waits_for_tensor_parallel_ranks() -> None:
    line = plan(**GIVEN, tensor_parallel=8).timeline(MACHINE)

    assert line.busy(TENSOR) > 0
    assert line.exposed(TENSOR, COMPUTE) == pytest.approx(line.busy(TENSOR))


def test_micro_batches_take_their_time_one_after_the_other() -> None:
    one, four = (plan(**GIVEN, stage=1, micro_batches=count).step_seconds(MACHINE) for count in (1, 4))

    assert 3.5 * one < four < 4 * one


def test_stage_1_gathers_during_the_next_forward() -> None:
    """So stage 3 is not faster only because it can overlap."""
    given = GIVEN | {"world_size": 8}
    first, third = (plan(**given, stage=stage).step_seconds("h100") for stage in (1, 3))

    assert first == pytest.approx(third, rel=0.05)


def test_mfu_is_of_useful_work() -> None:
    none, full = (plan(**GIVEN, stage=3, checkpointing=how).mfu(MACHINE) for how in ("none", "full"))

    assert 0.3 < full < 0.8 * none < 0.56


LL = Link(alpha=5.7e-6, small_alpha=1e-6, small_share=0.5, bandwidth=24e9)
NODE = Group(
    members=8, nodes=1, inside=Link(alpha=3.4e-6, small_alpha=1.9e-6, bandwidth=370e9), launch=8e-6,
    switch=Link(alpha=25e-6, bandwidth=480e9),
)  # fmt: skip


def test_small_messages_go_by_protocol_ll128() -> None:
    assert seconds("all_gather", 1e3, NODE) == pytest.approx(8e-6 + 7 * 1.9e-6 + 7 / 8 * 1e3 / (0.92 * 370e9))
    assert seconds("all_gather", 1e9, NODE) == ring_seconds("all_gather", 1e9, NODE)


def test_switches_add_in_a_large_all_reduce() -> None:
    assert seconds("all_reduce", 1e9, NODE) == pytest.approx(8e-6 + 25e-6 + 2 * 7 / 8 * 1e9 / 480e9)
    assert seconds("all_reduce", 1e3, replace(NODE, inside=LL)) < 8e-6 + 25e-6
