"""Each term of a step, on machines where one term takes all the time: a second is one operation, byte or message."""

from dataclasses import replace
from typing import Any

import pytest

from course_lib.planner import HARDWARE, Hardware, Link, Plan, Settings, Transformer, plan
from course_lib.planner.timing import work
from course_lib.planner.timing.schedule import COMMUNICATION, COMPUTE, HOST, PIPELINE, TENSOR, Timeline
from course_lib.planner.training.shapes import numel

FREE = Link(alpha=0, bandwidth=1e30)
IDLE: Hardware = replace(
    HARDWARE["h100-infiniband"], fast_flops=1e30, fp32_flops=1e30, memory_bandwidth=1e30, achievable=1, attention=1,
    inside=FREE, network=FREE, launch=0, switch=None, host_link=1e30, host_bandwidth=1e30,
)  # fmt: skip
"""Everything is free."""
GPT = Transformer(
    name="small", layers=2, hidden=100, heads=10, kv_heads=10, ffn=400, vocab=50, positions=0, context=100,
    gated=False, dropout=False, tied=True, source="this test",
)  # fmt: skip
GIVEN = {"model": GPT, "sequence": 10, "attention": "flash", "optimizer": "sgd"}
LAYERS = [[], *[[(10, 100)]] * 3]
"""An empty outer unit, and three layers of 1000 parameters."""


def planned(**given: object) -> Plan:
    return plan(**(given if "params" in given else GIVEN | given))


def spans(machine: Hardware, stream: str, **given: object) -> dict[str, list[float]]:
    """Return the seconds of each work on a stream, by name."""
    found: dict[str, list[float]] = {}
    for span in planned(**given).timeline(machine).spans:
        if span.stream == stream:
            found.setdefault(span.name, []).append(span.seconds)
    return found


def places(line: Timeline, name: str) -> list[tuple[float, float]]:
    return [(round(span.start, 6), round(span.end, 6)) for span in line.spans if span.name == name]


# Computing


def test_matrices_and_attention_at_their_rates() -> None:
    """A layer has 12 x 100 x 100 parameters in matrices: 240,000 FLOPs a token. Attention: 4 x 10 x 100 a token.

    10 tokens: 2,400,000 FLOPs at 0.5 x 1000, and 40,000 at 0.25 x 1000. The head: 2 x 100 x 50 x 10 at 0.5 x 1000.
    """
    machine = replace(IDLE, fast_flops=1000, achievable=0.5, attention=0.25)
    found = spans(machine, COMPUTE)

    assert found["forward layer 1"] == pytest.approx([4800 + 160])
    assert found["backward layer 1"] == pytest.approx([2 * (4800 + 160)])
    assert (found["forward head"], found["backward head"]) == (pytest.approx([200]), pytest.approx([400]))
    assert (found["forward embedding"], found["backward embedding"]) == ([0], [0])


def test_fp32_matrices_have_a_rate_of_their_own() -> None:
    machine = replace(IDLE, fp32_flops=500, achievable=0.5, attention=0.25)

    assert spans(machine, COMPUTE, precision="fp32")["forward layer 1"] == [pytest.approx(2 * (4800 + 160))]


def test_what_is_computed_again() -> None:
    """Of 4800 s of matrices and 160 s of attention: all, or half of the matrices, or the attention."""
    machine = replace(IDLE, fast_flops=1000, achievable=0.5, attention=0.25)
    for checkpointing, expected in (("full", 3 * 4960), ("operators", 2.5 * 4800 + 2 * 160)):
        found = spans(machine, COMPUTE, checkpointing=checkpointing)
        assert found["backward layer 0"] == pytest.approx([expected])
    assert spans(machine, COMPUTE, checkpointing="selective", attention="math")["backward layer 0"] == pytest.approx(
        [2 * 4800 + 3 * 160]
    )


def test_tensor_parallelism_divides_matrices_attention_and_head() -> None:
    machine = replace(IDLE, fast_flops=1000, achievable=0.5, attention=0.25)
    found = spans(machine, COMPUTE, world_size=2, tensor_parallel=2)

    assert found["forward layer 0"] == pytest.approx([2400 + 80])
    assert (found["forward head"], found["backward head"]) == (pytest.approx([100]), pytest.approx([200]))


def test_only_the_last_stage_has_a_head() -> None:
    machine = replace(IDLE, fast_flops=1000, achievable=0.5, attention=0.25)
    first, last = (spans(machine, COMPUTE, world_size=2, pipeline_parallel=2, pipeline_stage=stage) for stage in (0, 1))

    assert "forward head" not in first and first["backward head"] == [0]
    assert last["forward head"] == pytest.approx([200])


def test_shapes_are_taken_for_matrices() -> None:
    """2 FLOPs for each parameter and token, 1024 tokens: a head of 30 parameters, layers of 1000."""
    found = spans(replace(IDLE, fast_flops=1024), COMPUTE, params=[[(30,)], *LAYERS[1:]])

    assert (found["forward head"], found["backward head"]) == (pytest.approx([60]), pytest.approx([120]))
    assert (found["forward layer 2"], found["backward layer 2"]) == (pytest.approx([2000]), pytest.approx([4000]))


def test_a_bare_number_is_cut_into_equal_layers() -> None:
    found = spans(replace(IDLE, fast_flops=1024), COMPUTE, params=32_000)

    assert len([name for name in found if name.startswith("forward layer")]) == work.EQUAL_UNITS == 32
    assert found["forward layer 31"] == pytest.approx([2000])
    assert found["forward head"] == [0]


def test_a_slow_cpu_launches_the_layers_of_nanotron() -> None:
    """2.2 ms for each of 2 layers in forward, as much in backward; the GPU takes no time, and waits."""
    line = planned(engine="nanotron").timeline(IDLE)

    assert places(line, "launch forward layer 1") == [(0.0022, 0.0044)]
    assert places(line, "forward layer 1") == [(0.0044, 0.0044)]
    assert places(line, "launch backward layer 0") == [(0.0066, 0.0088)]
    assert line.seconds == pytest.approx(4 * 0.0022)
    assert planned(engine="torch", precision="fp32").timeline(IDLE).busy(HOST) == 0


def test_useful_flops_of_a_token() -> None:
    """6 for each parameter, and 12 x 2 layers x 100 x 10 tokens."""
    model = planned().model

    assert work.token_flops(model, Settings(sequence=10)) == 6 * model.params + 24_000
    assert work.token_flops(planned(params=1000).model, Settings(sequence=10)) == 6000


# What stage 3 gathers: a layer of 2000 bytes on 2 ranks takes 1 s, as its forward does


STAGE_3 = {"params": LAYERS, "world_size": 2, "stage": 3, "precision": "mixed", "sequence": 1}
SECOND = replace(IDLE, fast_flops=2000, inside=Link(alpha=0, bandwidth=1000))


def test_without_prefetch_a_layer_is_gathered_after_the_one_before() -> None:
    line = planned(**STAGE_3, prefetch=0).timeline(SECOND)

    assert [places(line, f"gather layer {at}")[0] for at in range(3)] == [(0, 1), (2, 3), (4, 5)]
    assert [places(line, f"forward layer {at}")[0] for at in range(3)] == [(1, 2), (3, 4), (5, 6)]
    assert places(line, "backward layer 2") == [(7, 9)]


def test_a_prefetch_of_one_is_gathered_while_the_one_before_computes() -> None:
    """Gathers and reductions, 1 s each, take turns; backward takes 2 s. The last gather is asked for at 7 s."""
    line = planned(**STAGE_3, prefetch=1).timeline(SECOND)

    assert [places(line, f"gather layer {at}")[0] for at in range(3)] == [(0, 1), (1, 2), (2, 3)]
    assert [places(line, f"forward layer {at}")[0] for at in range(3)] == [(1, 2), (2, 3), (3, 4)]
    assert [places(line, f"gather layer {at}")[1] for at in (2, 1, 0)] == [(4, 5), (5, 6), (8, 9)]
    assert [places(line, f"backward layer {at}")[0] for at in (2, 1, 0)] == [(5, 7), (7, 9), (9, 11)]
    assert [places(line, f"reduce_scatter of gradients to layer {at}")[0] for at in (2, 1, 0)] == [
        (7, 8), (9, 10), (11, 12)
    ]  # fmt: skip


def test_stage_3_reduces_in_each_micro_batch() -> None:
    """As above, 12 s with the last reduction, before the next micro-batch begins.

    Of these, 9 s are computing, and 9 s gathers and reductions, 3 s of them while nothing is computed.
    """
    line = planned(**STAGE_3, prefetch=1, micro_batches=3).timeline(SECOND)

    assert places(line, "earlier micro-batches") == [(0, 2 * 9), (2 * 9 - 2 * 6, 2 * 12)]
    assert places(line, "gather layer 0")[0] == (2 * 12, 2 * 12 + 1)
    assert line.seconds == 3 * 12


@pytest.mark.parametrize("network", ["h100", "h100-infiniband", "h100-ethernet"])
@pytest.mark.parametrize("given", [
    {"stage": 3}, {"stage": 2}, {"stage": 1, "engine": "nanotron"},
    {"stage": 3, "tensor_parallel": 4, "offload": ["parameters"]}, {"stage": 3, "context_parallel": 2},
])  # fmt: skip
def test_each_micro_batch_computes_and_communicates_as_much_as_one(network: str, given: dict[str, Any]) -> None:
    """From three micro-batches to four, each stream does, and exposes, as much more as from two to three."""
    settings = {"model": "llama-7b", "world_size": 8 if network == "h100" else 64, "sequence": 2048} | given
    two, three, four = (plan(**settings, micro_batches=count).timeline(network) for count in (2, 3, 4))

    for stream in {span.stream for span in four.spans}:
        for what in (Timeline.busy, lambda line, stream: line.exposed(stream, COMPUTE)):
            more = what(four, stream) - what(three, stream)
            assert more == pytest.approx(what(three, stream) - what(two, stream), abs=1e-9)
            assert 0 <= more <= four.seconds - three.seconds + 1e-9


def test_waiting_for_the_network_is_not_computing() -> None:
    """Over 100 Gb/s Ethernet nearly all of a step is communication, however many micro-batches there are."""
    given = {"model": "llama-7b", "world_size": 64, "stage": 3, "sequence": 2048}
    one, four = (plan(**given, micro_batches=count).timeline("h100-ethernet") for count in (1, 4))

    assert four.busy(COMPUTE) == pytest.approx(4 * one.busy(COMPUTE), rel=0.02)
    assert four.busy(COMMUNICATION) == pytest.approx(4 * one.busy(COMMUNICATION))
    assert four.exposed(COMMUNICATION, COMPUTE) == pytest.approx(four.seconds - four.busy(COMPUTE))


def test_kept_parameters_are_gathered_once() -> None:
    line = planned(**STAGE_3, prefetch=1, reshard=False).timeline(SECOND)

    assert [places(line, f"gather layer {at}") for at in range(3)] == [[(0, 1)], [(1, 2)], [(2, 3)]]
    assert [places(line, f"backward layer {at}")[0] for at in (2, 1, 0)] == [(4, 6), (6, 8), (8, 10)]
    assert line.seconds == 11


def test_parameters_from_the_host_are_copied_first() -> None:
    """2000 bytes of a layer, a half on each of 2 ranks, at 500 bytes a second: 2 s. Gathering takes 1 s."""
    line = planned(**STAGE_3, prefetch=0, offload=["optimizer", "parameters"]).timeline(replace(SECOND, host_link=500))

    assert places(line, "copy layer 0 to the device")[0] == (0, 2)
    assert places(line, "gather layer 0")[0] == (2, 3)
    assert places(line, "copy layer 1 to the device")[0] == (4, 6)


def test_kept_parameters_are_not_copied_again() -> None:
    given = STAGE_3 | {"offload": ["optimizer", "parameters"], "reshard": False}
    line = planned(**given).timeline(replace(SECOND, host_link=500))

    assert places(line, "copy layer 0 to the device") == [(0, 2)]


# What is sent after backward


def test_all_ranks_are_the_same_second_shard_by_name_and_by_number() -> None:
    given = STAGE_3 | {"offload": ["optimizer", "parameters"]}
    lines = [planned(**given, reshard=reshard).timeline(replace(SECOND, host_link=500)) for reshard in (True, 2)]

    assert places(lines[0], "copy layer 0 to the device") == places(lines[1], "copy layer 0 to the device")
    assert len(places(lines[0], "copy layer 0 to the device")) == 2


def test_the_papers_stage_2_gathers_in_the_next_forward() -> None:
    """3 layers of 1000 of 3000 parameters, each a third of 6000 bytes, a half of which is sent: 1 s."""
    given = STAGE_3 | {"stage": 2}
    line = planned(**given).timeline(SECOND)

    assert [places(line, f"gather layer {at}") for at in range(3)] == [[(0, 1)], [(1, 2)], [(2, 3)]]
    assert not places(line, "all_gather of parameters")


def test_this_courses_stage_2_gathers_after_its_step_in_buckets() -> None:
    """6000 bytes in buckets of 1000: six times 1 s of alpha, and 500 bytes at 1000 a second."""
    machine = replace(SECOND, inside=Link(alpha=1, bandwidth=1000))
    line = planned(**STAGE_3 | {"stage": 2, "engine": "zero", "bucket_bytes": 1000}).timeline(machine)

    (found,) = places(line, "all_gather of parameters")
    assert found[1] - found[0] == pytest.approx(6 * 1.5)


def test_gradients_in_one_bucket_are_one_call() -> None:
    """An all-reduce of 6000 bytes on 2 ranks: 2 x (1 s + 3000 / 1000)."""
    machine = replace(SECOND, inside=Link(alpha=1, bandwidth=1000))
    found = spans(machine, COMMUNICATION, **STAGE_3 | {"stage": 0, "bucket_bytes": 10**6})

    assert found == {"all_reduce of gradients to embedding": [pytest.approx(8)]}


def test_a_bucket_and_what_is_left() -> None:
    """Buckets of 1500 parameters: one is full after the second layer, the rest waits for the end."""
    found = spans(SECOND, COMMUNICATION, **STAGE_3 | {"stage": 0, "bucket_bytes": 3000})

    assert found == {
        "all_reduce of gradients to layer 1": [pytest.approx(3)],
        "all_reduce of gradients to layer 0": [pytest.approx(3)],
    }


def test_a_hybrid_reduces_among_replicas_what_it_has_scattered() -> None:
    """4 ranks, 2 shards, 2 replicas: 1 s for the layer's half; then its other half, 2 x 500 bytes: 1 s."""
    given = STAGE_3 | {"world_size": 4, "shard_size": 2}
    line = planned(**given).timeline(SECOND)

    ((begin, end),) = places(line, "reduce_scatter of gradients to layer 2")
    assert end - begin == 1
    assert places(line, "all_reduce of gradients to layer 2") == [(end, end + 1)]


def test_replicas_that_are_a_node_apart_share_the_network() -> None:
    """TP 2 x 4 shards are a node of 8, so each of 8 groups of 2 replicas has 1000 of 8000 bytes a second.

    A rank has a quarter of a layer's part, which is all-reduced: 2 x 1/2 of 2 bytes each.
    """
    machine = replace(IDLE, network=Link(alpha=0, bandwidth=8000))
    given = {"world_size": 16, "tensor_parallel": 2, "stage": 3, "shard_size": 4}
    found = spans(machine, COMMUNICATION, **given)

    layer = numel(planned(**given).piece.units[1])
    assert found["all_reduce of gradients to layer 1"] == [pytest.approx(2 * layer / 4 / 1000, rel=1e-4)]


def test_gradients_go_to_the_host_after_they_are_scattered() -> None:
    """A layer's half has 500 gradients of 2 bytes, at 500 bytes a second."""
    line = planned(**STAGE_3, offload=["optimizer"]).timeline(replace(SECOND, host_link=500))

    ((begin, end),) = places(line, "copy gradients to layer 2 to the host")
    assert begin == places(line, "reduce_scatter of gradients to layer 2")[0][1]
    assert end - begin == 2


def test_the_optimizer_reads_and_writes() -> None:
    """3 x 1000 parameters. Adam, mixed: 2 gradient, 2 x 4 master, 2 parameter, 2 x 8 states: 28 bytes."""
    machine = replace(IDLE, memory_bandwidth=3000)
    for given, each in (
        ({"optimizer": "adam"}, 28),
        ({"optimizer": "adam", "precision": "fp32"}, 4 + 2 * 4 + 2 * 8),
        ({"optimizer": "sgd", "precision": "bf16"}, 2 + 2 * 2),
        ({"optimizer": "sgd", "engine": "torch", "stage": 3}, 4 + 2 * 4),  # the fp32 shard is the master
    ):
        assert spans(machine, COMPUTE, params=LAYERS, **given)["optimizer step"] == [pytest.approx(each)]


def test_the_host_shares_its_bandwidth_among_its_devices() -> None:
    """28 bytes for each of 1500 parameters of a rank, at 13 % of a half of 1000 bytes a second; 3000 go back."""
    given = STAGE_3 | {"stage": 1, "optimizer": "adam", "offload": ["optimizer"]}
    for devices, bandwidth in ((8, 1000), (1, 500)):  # 6 devices of 8 are idle; or each rank has a host
        found = spans(replace(IDLE, devices=devices, host_bandwidth=bandwidth, host_link=500), HOST, **given)

        assert found["optimizer step on the host"] == [pytest.approx(84 / 0.13)]
        assert found["copy parameters to the device"] == [pytest.approx(6)]


def test_sums_of_gradients_are_read_and_written() -> None:
    """A layer of 1000: its gradient is read, the sum read and written. nanotron sums even a single micro-batch."""
    machine = replace(IDLE, memory_bandwidth=1000)
    for given, each in (
        ({"micro_batches": 2, "engine": "torch", "precision": "fp32"}, 4 + 2 * 4),
        ({"micro_batches": 2, "engine": "zero"}, 4 + 2 * 4),  # this course's gradients are in fp32
        ({"micro_batches": 1, "engine": "torch", "precision": "fp32"}, 0),
        ({"micro_batches": 2, "engine": "paper"}, 0),
        ({"micro_batches": 1, "engine": "nanotron", "precision": "mixed_fp32_accumulation"}, 2 + 2 * 4),
        ({"micro_batches": 2, "engine": "torch", "world_size": 2, "stage": 3}, (4 + 2 * 4) / 2),
    ):
        found = spans(machine, COMPUTE, params=LAYERS, **given)
        assert found["backward layer 0"] == [pytest.approx(each)], given


# Tensor and pipeline parallelism


def test_a_layer_exchanges_in_two_calls() -> None:
    """An all-reduce of 2 ranks: 2 s of alpha. A layer makes two in forward, as many in backward."""
    machine = replace(IDLE, inside=Link(alpha=1, bandwidth=1e30))
    given = {"world_size": 2, "tensor_parallel": 2, "sequence_parallel": False, "batch": 3, "micro_batches": 2}
    found = spans(machine, TENSOR, **given)

    calls = {f"all_reduce of activations of layer {at}": [4, 4] for at in (0, 1)}
    assert found == calls | {"earlier micro-batches": [16]}


def test_computing_waits_for_the_exchange() -> None:
    machine = replace(IDLE, inside=Link(alpha=1, bandwidth=1e30))
    line = planned(world_size=2, tensor_parallel=2, sequence_parallel=False).timeline(machine)

    assert places(line, "forward layer 1") == [(4, 4)]
    assert line.seconds == 16


def test_a_stage_sends_its_ranks_part_of_the_tokens() -> None:
    """10 tokens of 100 elements of 2 bytes, a half for each of 2 tensor-parallel ranks: 1 s + 1000 / 500."""
    machine = replace(IDLE, inside=Link(alpha=1, bandwidth=500))
    given = {"world_size": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": False}
    found = spans(machine, PIPELINE, **given)

    assert (found["send activations, forward"], found["send activations, backward"]) == ([3], [3])


def test_stages_in_different_nodes_share_the_network() -> None:
    """8 data-parallel ranks fill a node: each has an eighth of 4000 bytes a second: 1 s + 2000 / 500."""
    machine = replace(IDLE, inside=FREE, network=Link(alpha=1, bandwidth=4000))
    for parallel in ({"world_size": 16}, {"world_size": 16, "tensor_parallel": 2, "batch": 2}):
        found = spans(machine, PIPELINE, **parallel, pipeline_parallel=2)
        assert found["send activations, forward"] == [pytest.approx(5)]
    assert spans(machine, PIPELINE, world_size=8, pipeline_parallel=2)["send activations, forward"] == [
        pytest.approx(0)
    ]


def test_a_stage_that_is_smaller_than_a_node_crosses_to_the_next_node() -> None:
    """2 stages of 4 ranks in each node: from the 2nd to the 3rd, 4 ranks share 4000 bytes a second: 1 s + 1000 / 1000.

    The first stage sends in its node, for nothing. It waits for the slow stages, 4 s there and back: twice for 2 more
    micro-batches, and for each of the two until the last stage can begin.
    """
    machine = replace(IDLE, inside=FREE, network=Link(alpha=1, bandwidth=4000))
    given = {"model": replace(GPT, layers=4), "world_size": 16, "pipeline_parallel": 4, "tensor_parallel": 2}
    sent = [spans(machine, PIPELINE, **given, pipeline_stage=stage) for stage in range(4)]
    line = planned(**given, micro_batches=3).timeline(machine)

    assert [one["send activations, forward"] for one in sent] == [[pytest.approx(cost)] for cost in (0, 2, 2, 0)]
    assert line.seconds == pytest.approx(2 * (2 + 2) + 2 * (2 + 2))


def test_an_earlier_micro_batch_takes_as_long_without_reductions() -> None:
    """Forward 3 s and backward 6 s; the last one also reduces 3 layers for 2 s each, two of them hidden."""
    line = planned(**STAGE_3 | {"stage": 0, "micro_batches": 4, "bucket_bytes": 2000}).timeline(SECOND)

    assert places(line, "earlier micro-batches") == [(0, 3 * 9)]
    assert line.seconds == 4 * 9 + 2


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_only_the_first_forward_hides_the_gather_of_updated_parameters(stage: int, micro_batches: int) -> None:
    """Layers are gathered for 1 s each, and reduced for 1 s each, in stage 1 after the last micro-batch.

    The first layer's gather and the last reduction are not hidden. A micro-batch is 3 s of forward, 6 s of backward.
    In stage 2 the other micro-batches reduce too, one of 3 s not hidden.
    """
    line = planned(**STAGE_3 | {"stage": stage, "micro_batches": micro_batches, "bucket_bytes": 2000}).timeline(SECOND)
    label = "earlier micro-batches, " if micro_batches > 1 else ""

    assert [places(line, f"gather layer {at}") for at in range(3)] == [[(0, 1)], [(1, 2)], [(2, 3)]]
    assert [places(line, f"{label}forward layer {at}")[0] for at in range(3)] == [(1, 2), (2, 3), (3, 4)]
    each = 9 if stage == 1 else 10
    assert line.seconds == pytest.approx(1 + 9 + 1 + each * (micro_batches - 1))
    assert line.busy(COMPUTE) == 9 * micro_batches


def test_one_micro_batch_in_a_pipeline_waits_for_no_reductions() -> None:
    """Stages of 8 layers reduce side by side after their backward: one more micro-batch takes longer, not shorter."""
    given = {"model": "llama3-70b", "world_size": 64, "pipeline_parallel": 8, "stage": 3, "engine": "torch"}
    one, two = (plan(**given, attention="flash", micro_batches=count).step_seconds("h100-ethernet") for count in (1, 2))

    assert one < two


def test_even_a_single_micro_batch_waits_for_the_other_stages() -> None:
    machine = replace(IDLE, fast_flops=1000, achievable=0.5, attention=0.25)
    line = planned(world_size=2, pipeline_parallel=2).timeline(machine)

    assert places(line, "wait for other stages") == [(0, 15_480)]
    assert not [span for span in planned(micro_batches=2).timeline(machine).spans if span.stream == PIPELINE]


def test_a_stage_waits_for_the_others() -> None:
    """2 stages of a layer: forward 4960 s, backward 9920 s; the last has a head, 200 s and 400 s."""
    machine = replace(IDLE, fast_flops=1000, achievable=0.5, attention=0.25)
    given = {"world_size": 2, "pipeline_parallel": 2, "micro_batches": 3}
    first, last = (planned(**given, pipeline_stage=stage).timeline(machine) for stage in (0, 1))

    assert places(first, "earlier micro-batches") == [(0, 2 * 14_880)]
    assert places(first, "wait for other stages") == [(29_760, 29_760 + 2 * 600 + 15_480)]
    assert places(last, "wait for other stages") == [(2 * 15_480, 2 * 15_480 + 14_880)]
    assert first.seconds == last.seconds == 3 * 15_480 + 14_880
