"""Each term of a step's time, with numbers that can be checked on paper."""

from dataclasses import replace
from typing import Any

import pytest

from course_lib.planner import HARDWARE, Hardware, Link, Plan, Settings, Transformer, plan
from course_lib.planner.timing.schedule import COMMUNICATION, COMPUTE, HOST, TENSOR, Timeline
from course_lib.planner.timing.step import waiting_seconds
from course_lib.planner.timing.work import element_wise, scores

GPT = Transformer(
    name="small", layers=4, hidden=1000, heads=10, kv_heads=10, ffn=4000, vocab=500, positions=0, context=1000,
    gated=False, dropout=False, tied=True, source="this test",
)  # fmt: skip
LLAMA = replace(GPT, gated=True, ffn=3000)
MACHINE: Hardware = replace(
    HARDWARE["h100"], fast_flops=1e30, memory_bandwidth=1e9, inside=Link(alpha=0.0, bandwidth=1e9), launch=0.0,
    switch=None, host_link=1e6, host_bandwidth=4e6,
)  # fmt: skip
"""Matrices take no time; memory and links carry 1 byte in a nanosecond; 4 ranks have 1 MB/s each to and in the host."""


def cut(tensor: int = 1, **given: object) -> Settings:
    return Settings(world_size=tensor, tensor_parallel=tensor, **given)


# Element-wise work: bytes for a token


def test_every_rank_does_all_norms_without_sequence_parallelism() -> None:
    """100 bytes x 1000. GELU reads and writes 4000 elements of 2 bytes, 16,000: of those each of 4 ranks has a part."""
    assert element_wise(GPT, cut()) == 100_000
    assert element_wise(GPT, cut(4, sequence_parallel=False)) == 84_000 + 16_000 / 4
    assert element_wise(GPT, cut(4, sequence_parallel=True)) == 100_000 / 4


def test_a_gate_reads_two_inputs_and_writes_one() -> None:
    """3 x 3000 elements of 2 bytes are 18,000 of the 100,000."""
    assert element_wise(LLAMA, cut(4, sequence_parallel=False)) == 82_000 + 18_000 / 4


def test_plain_torch_moves_more_unless_compiled() -> None:
    """250 bytes x 1000; SiLU and product apart access 5 x 3000 elements of 2 bytes, 30,000."""
    eager, compiled = (cut(4, sequence_parallel=False, engine="torch", stage=3, compiled=c) for c in (False, True))

    assert element_wise(LLAMA, eager) == 220_000 + 30_000 / 4
    assert element_wise(LLAMA, cut(engine="zero", stage=3)) == 250_000
    assert element_wise(LLAMA, compiled) == 82_000 + 18_000 / 4
    assert element_wise(GPT, eager) == element_wise(GPT, compiled) == 84_000 + 16_000 / 4


@pytest.mark.parametrize(("engine", "stage"), [("paper", 3), ("nanotron", 1)])
def test_other_engines_are_timed_with_fused_kernels(engine: str, stage: int) -> None:
    assert element_wise(LLAMA, cut(engine=engine, stage=stage)) == 100_000


def test_a_very_wide_layer_moves_no_more_than_the_constant() -> None:
    wide = replace(GPT, ffn=100_000)

    assert element_wise(wide, cut(4, sequence_parallel=False)) == 100_000 / 4


def test_scores_are_written_normalised_and_read() -> None:
    """10 heads x 100 tokens, written, read, written, read: 4 x 2 bytes; dropout reads and writes them once more."""
    assert scores(GPT, cut(sequence=100)) == 8_000
    assert scores(GPT, cut(2, sequence=100, sequence_parallel=False)) == 4_000
    assert scores(replace(GPT, dropout=True), cut(sequence=100)) == 12_000
    assert scores(GPT, cut(sequence=100, attention="flash")) == 0


# A step


def line(**given: object) -> Timeline:
    return planned(**given).timeline(MACHINE)


def planned(**given: object) -> Plan:
    return plan(**{"model": GPT, "sequence": 100, "attention": "flash", "optimizer": "sgd"} | given)


def spent(found: Timeline, stream: str, name: str) -> float:
    return sum(span.seconds for span in found.spans if span.stream == stream and span.name.startswith(name))


def test_backward_takes_twice_forward_and_computes_again_what_was_not_kept() -> None:
    """4 layers x 100 tokens x 100,000 bytes: 40 ms. Scores: 4 x 100 tokens x 8,000 bytes: 3.2 ms."""
    for attention, checkpointing, forward, backward in (
        ("flash", "none", 40, 80), ("flash", "full", 40, 120), ("flash", "operators", 40, 120),
        ("math", "none", 43.2, 86.4), ("math", "selective", 43.2, 89.6), ("math", "full", 43.2, 129.6),
    ):  # fmt: skip
        found = line(attention=attention, checkpointing=checkpointing)

        assert 1e3 * spent(found, COMPUTE, "forward") == pytest.approx(forward)
        assert 1e3 * spent(found, COMPUTE, "backward") == pytest.approx(backward)


def test_gradients_are_added_to_their_sums() -> None:
    """A layer of N parameters: 2 bytes are read, the fp32 sum is read and written, 10 bytes each."""
    given = {"engine": "nanotron", "precision": "mixed_fp32_accumulation"}
    layers, all_of_it = line(**given), planned(**given).piece.params

    assert spent(layers, COMPUTE, "backward") == pytest.approx(0.080 + 10 * all_of_it / 1e9)


@pytest.mark.parametrize(("stage", "micro_batches", "each"), [(3, 1, 0), (3, 2, 12 / 4), (0, 1, 0), (0, 2, 12)])
def test_gradients_of_micro_batches_are_added(stage: int, micro_batches: int, each: float) -> None:
    """In fp32: read, read, written, 12 bytes; in stage 3 each of 4 ranks adds its shard."""
    given = {"engine": "torch", "precision": "fp32", "world_size": 4, "stage": stage}
    found = line(**given, micro_batches=micro_batches)

    per_token = 2 * 100_000  # in fp32
    assert spent(found, COMPUTE, "backward") == pytest.approx(
        2 * 4 * 100 * per_token / 1e9 + each * planned(**given).piece.params / 1e9, rel=1e-2
    )


def test_the_device_reads_and_writes_for_the_optimizer() -> None:
    """SGD in mixed precision: 2 bytes of gradient, the fp32 master read and written, 2 bytes of parameter: 12."""
    params = planned().piece.params

    assert spent(line(), COMPUTE, "optimizer step") == pytest.approx(12 * params / 1e9)


def test_offloaded_shards_cross_the_bus() -> None:
    """4 ranks: each copies 2 bytes of a quarter of the parameters to the device, and of the gradients to the host."""
    found = line(world_size=4, stage=3, offload=["optimizer", "parameters"])
    quarter = planned(world_size=4, stage=3).piece.params / 4

    assert spent(found, HOST, "copy gradients") == pytest.approx(2 * quarter / 1e6, rel=1e-3)
    layer = 12 * 1000**2 + 13 * 1000
    copies = [span.seconds for span in found.spans if span.name == "copy layer 2 to the device"]
    assert copies == pytest.approx([2 * layer / 4 / 1e6] * 2)  # forward and backward


@pytest.mark.parametrize("given", [
    {"engine": "torch"}, {"engine": "torch", "reshard": 2}, {"trainable": 0, "frozen": "nf4"},
    {"lora_rank": 8, "frozen": "nf4"},
])  # fmt: skip
def test_offloaded_shards_cross_the_bus_as_they_are_kept(given: dict[str, Any]) -> None:
    """fully_shard's in fp32, quantized ones in 4 bits; a second shard is on the device for backward."""
    found = line(world_size=4, stage=3, offload=["optimizer", "parameters"], **given)
    parts = planned(world_size=4, stage=3, offload=["optimizer", "parameters"], **given).parts
    shard = sum(part.nbytes for part in parts if part.category == "parameters" and part.host)

    once = given.get("trainable") == 0 or "reshard" in given
    copied = sum(span.seconds for span in found.spans if span.name.endswith("to the device"))
    assert copied == pytest.approx(shard * (1 if once else 2) / 1e6, rel=0.01)


def test_offloaded_parameters_return_after_the_step() -> None:
    found = line(world_size=4, stage=2, offload=["optimizer"])
    quarter = planned(world_size=4, stage=2).piece.params / 4

    assert spent(found, HOST, "copy parameters") == pytest.approx(2 * quarter / 1e6, rel=1e-3)
    assert spent(found, HOST, "optimizer step") == pytest.approx(12 * quarter / 1e6 / 0.13, rel=1e-3)


@pytest.mark.parametrize(
    ("precision", "bucket_bytes", "reductions"),
    [("mixed", 4000, 2), ("mixed", 2000, 4), ("mixed", 10**6, 1), ("mixed_fp32_accumulation", 4000, 4)],
)
def test_a_bucket_is_reduced_when_it_is_full(precision: str, bucket_bytes: int, reductions: int) -> None:
    """Four layers of 1000 parameters of 2 or 4 bytes."""
    found = plan(
        params=[[], *[[(10, 100)]] * 4], world_size=4, stage=2, precision=precision, bucket_bytes=bucket_bytes
    ).timeline(MACHINE)  # fmt: skip

    assert sum(span.name.startswith("reduce_scatter") for span in found.spans) == reductions
    size = 4 if precision == "mixed_fp32_accumulation" else 2
    assert spent(found, COMMUNICATION, "reduce_scatter") == pytest.approx(3 / 4 * 4000 * size / 1e9)


@pytest.mark.parametrize(("checkpointing", "again"), [("none", 0), ("selective", 0), ("full", 1)])
def test_what_is_computed_again_is_exchanged_again(checkpointing: str, again: int) -> None:
    """2 all-reduces in each of 4 layers, of 100 tokens of 1000 elements of 2 bytes, along a ring of 2."""
    given = {"world_size": 2, "tensor_parallel": 2, "sequence_parallel": False, "checkpointing": checkpointing}
    call = 2 * 4 * 100 * 1000 * 2

    assert spent(line(**given), TENSOR, "all_reduce") == pytest.approx((2 + again) * call / 1e9)
    assert planned(**given).sent_bytes == (2 + again) * call


@pytest.mark.parametrize(
    ("checkpointing", "gathers", "scatters"), [("none", 3, 2), ("operators", 4, 2), ("full", 4, 3)]
)
def test_sequence_parallelism_exchanges_again(checkpointing: str, gathers: int, scatters: int) -> None:
    found = line(world_size=2, tensor_parallel=2, checkpointing=checkpointing)
    once = 2 * 4 * 100 * 1000 * 2 / 2 / 1e9

    assert spent(found, TENSOR, "all_gather") == pytest.approx(gathers * once)
    assert spent(found, TENSOR, "reduce_scatter") == pytest.approx(scatters * once)


# A pipeline


def test_all_stages_keep_the_pace_of_the_slowest() -> None:
    """Three stages of 1 s and a last one of 2 s, 4 micro-batches: it begins after 3 s and works for 8 s, 11 in all."""
    settings = [Settings(world_size=4, pipeline_parallel=4, micro_batches=4, pipeline_stage=at) for at in range(4)]
    stages = [1, 1, 1, 2]

    assert [waiting_seconds(stages, one) for one in settings] == [7, 7, 7, 3]
    assert [4 * mine + waiting_seconds(stages, one) for mine, one in zip(stages, settings, strict=True)] == [11] * 4


def test_interleaved_stages_fill_in_parts() -> None:
    given = Settings(world_size=4, pipeline_parallel=4, micro_batches=4, model_chunks=2)

    assert waiting_seconds([1, 1, 1, 2], given) == 3 * 1 + 4 / 2


def test_a_step_lasts_as_long_as_its_slowest_stage_needs() -> None:
    """6 layers on 4 stages: 1, 2, 2 and 1. A layer needs 30 ms for a micro-batch, whose sending takes 0.2 ms.

    The slowest stage works for 8 x 60.2 ms, and the other stages make it wait for 30.2 + 60.2 + 30.2 ms.
    """
    model = replace(GPT, layers=6)
    found = [line(model=model, world_size=4, pipeline_parallel=4, pipeline_stage=at, micro_batches=8) for at in (0, 1)]
    update = [spent(one, COMPUTE, "optimizer step") for one in found]

    for one, step in zip(found, update, strict=True):
        assert one.seconds - step == pytest.approx(8 * 0.0602 + 0.0302 + 0.0602 + 0.0302, rel=1e-3)
