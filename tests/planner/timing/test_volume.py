"""What is sent: 2Ψ, 2Ψ, 2Ψ and 3Ψ, as rings send it, and what engines and hybrids make of that."""

from math import floor

import pytest

from course_lib.planner import Transformer, plan

PSI = 64 * 10**6


@pytest.mark.parametrize(("stage", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_the_papers_volumes(stage: int, times: int, ranks: int) -> None:
    planned = plan(params=PSI, world_size=ranks, stage=stage, precision="fp32")

    assert planned.sent_bytes == times * (ranks - 1) * PSI // ranks * 4


def test_zero_redundancy_optimizer_sends_three_where_the_paper_sends_two() -> None:
    given = {"params": PSI, "world_size": 8, "stage": 1, "precision": "fp32"}

    assert plan(**given, engine="torch").sent_bytes * 2 == plan(**given).sent_bytes * 3


def test_fully_shard_gathers_twice_and_scatters() -> None:
    planned = plan(params=PSI, world_size=8, stage=3, engine="torch")

    assert [(call.op, call.total_bytes) for call in planned.collectives] == [
        ("all_gather", 2 * PSI), ("all_gather", 2 * PSI), ("reduce_scatter", 2 * PSI)
    ]  # fmt: skip


def test_keeping_parameters_from_forward_saves_one_gather() -> None:
    planned = plan(params=PSI, world_size=8, stage=3, precision="fp32", reshard=False)

    assert planned.sent_bytes == 2 * 7 * PSI // 8 * 4
    assert [call.op for call in planned.collectives] == ["all_gather", "reduce_scatter"]


def test_hybrid_sharding_reduces_shards_among_replicas() -> None:
    planned = plan(params=PSI, world_size=64, stage=3, shard_size=8, precision="fp32")

    assert [(call.op, call.group, call.ranks, call.total_bytes) for call in planned.collectives] == [
        ("all_gather", "shard", 8, 4 * PSI),
        ("all_gather", "shard", 8, 4 * PSI),
        ("reduce_scatter", "shard", 8, 4 * PSI),
        ("all_reduce", "replica", 8, 4 * PSI // 8),
    ]


def test_padding_is_sent_too() -> None:
    planned = plan(params=[(5,)], world_size=4, stage=2, precision="fp32")

    assert [call.total_bytes for call in planned.collectives] == [32, 32]
    assert planned.sent_bytes == 2 * 24


def test_fractions_are_rounded_down_once() -> None:
    assert plan(params=[(5,)], world_size=3, stage=0, precision="fp32").sent_bytes == floor(2 * 2 * 20 / 3)


def test_gradients_accumulated_in_fp32_are_reduced_in_fp32() -> None:
    given = {"params": PSI, "world_size": 8, "stage": 0}

    assert plan(**given, precision="mixed_fp32_accumulation").sent_bytes == 2 * plan(**given).sent_bytes


# Micro-batches, and what tensor and pipeline parallelism send

GPT = Transformer(
    name="small", layers=4, hidden=100, heads=10, kv_heads=10, ffn=400, vocab=50, positions=0, context=100,
    gated=False, dropout=False, tied=True, source="this test",
)  # fmt: skip
TOKENS = 2 * 10 * 100 * 2
"""Bytes of 2 micro-batches of 10 tokens of 100 elements."""


def test_stage_3_gathers_and_reduces_in_each_micro_batch() -> None:
    given = {"params": PSI, "world_size": 8, "stage": 3, "precision": "fp32", "micro_batches": 3}
    whole, kept = (plan(**given, reshard=reshard).collectives for reshard in (True, False))

    assert [(call.micro_batches, call.total_bytes) for call in whole] == [(3, 3 * 4 * PSI)] * 3
    assert [(call.micro_batches, call.total_bytes) for call in kept] == [(3, 3 * 4 * PSI)] * 2


def test_a_pipeline_keeps_parameters_until_its_last_micro_batch() -> None:
    planned = plan(model=GPT, world_size=4, pipeline_parallel=2, stage=3, reshard=False, micro_batches=3, sequence=10)
    gathers = [call for call in planned.collectives if call.op == "all_gather"]

    assert [(call.micro_batches, call.total_bytes) for call in gathers] == [(1, 2 * planned.piece.params)]


def test_whole_gradients_are_reduced_once() -> None:
    for stage in (0, 1):
        once, thrice = (
            plan(params=PSI, world_size=8, stage=stage, precision="fp32", micro_batches=times) for times in (1, 3)
        )
        assert once.sent_bytes == thrice.sent_bytes


def sent(**given: object) -> list[tuple[str, str, int]]:
    """The exchanges of activations, with their bytes."""
    planned = plan(**{"model": GPT, "sequence": 10, "attention": "flash", "micro_batches": 2} | given)
    found = [call for call in planned.collectives if call.what == "activations"]
    assert all(call.micro_batches == 2 for call in found)
    return [(call.op, call.when, call.total_bytes) for call in found]


def test_tensor_parallelism_exchanges_twice_in_a_layer() -> None:
    """4 layers, 2 blocks each. Sequence parallelism gathers and scatters, and gathers once more for the weights."""
    both = {"world_size": 2, "tensor_parallel": 2}

    assert sent(**both, sequence_parallel=False) == [
        ("all_reduce", "forward", 8 * TOKENS), ("all_reduce", "backward", 8 * TOKENS)
    ]  # fmt: skip
    assert sent(**both) == [
        ("all_gather", "forward", 8 * TOKENS), ("reduce_scatter", "forward", 8 * TOKENS),
        ("all_gather", "backward", 2 * 8 * TOKENS), ("reduce_scatter", "backward", 8 * TOKENS),
    ]  # fmt: skip


def test_only_backward_makes_exchanges_again() -> None:
    both = {"world_size": 2, "tensor_parallel": 2, "checkpointing": "full"}

    assert [nbytes for *_, nbytes in sent(**both, sequence_parallel=False)] == [8 * TOKENS, 2 * 8 * TOKENS]
    assert [nbytes for *_, nbytes in sent(**both)] == [8 * TOKENS, 8 * TOKENS, 3 * 8 * TOKENS, 2 * 8 * TOKENS]
    assert [nbytes for *_, nbytes in sent(**both | {"checkpointing": "operators"})][2:] == [3 * 8 * TOKENS, 8 * TOKENS]


def test_the_ends_of_a_pipeline_send_one_way() -> None:
    def stage(at: int, **given: object) -> list[tuple[str, str, int]]:
        return sent(world_size=3, pipeline_parallel=3, pipeline_stage=at, **given)

    assert stage(0) == [("send", "forward", TOKENS)]
    assert stage(1) == [("send", "forward", TOKENS), ("send", "backward", TOKENS)]
    assert stage(2) == [("send", "backward", TOKENS)]


def test_interleaved_stages_send_after_each_piece() -> None:
    """Two parts a stage: the first stage sends both forward, and of its gradients only the second's."""
    assert sent(world_size=2, pipeline_parallel=2, model_chunks=2) == [
        ("send", "forward", 2 * TOKENS), ("send", "backward", TOKENS)
    ]  # fmt: skip


def test_tensor_parallel_ranks_send_a_part_each() -> None:
    given = {"world_size": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": False}

    assert ("send", "forward", TOKENS // 2) in sent(**given)
    planned = plan(model=GPT, sequence=10, attention="flash", micro_batches=2, **given)
    assert [int(call.sent) for call in planned.collectives if call.op == "send"] == [TOKENS // 2]
