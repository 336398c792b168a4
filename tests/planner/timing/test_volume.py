"""What is sent: 2Ψ, 2Ψ, 2Ψ and 3Ψ, as rings send it, and what engines and hybrids make of that."""

from math import floor

import pytest

from course_lib.planner import plan

PSI = 64 * 10**6


@pytest.mark.parametrize(("stage", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_the_papers_volumes(stage: int, times: int, ranks: int) -> None:
    planned = plan(params=PSI, world_size=ranks, stage=stage, precision="fp32")

    assert planned.sent_bytes == times * (ranks - 1) * PSI // ranks * 4


def test_zero_redundancy_optimizer_sends_three_where_the_paper_sends_two() -> None:
    given = {"params": PSI, "world_size": 8, "stage": 1, "precision": "fp32"}

    assert plan(**given, engine="torch").sent_bytes * 2 == plan(**given).sent_bytes * 3


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
