"""The planner gives what others have published, and says where it differs."""

from math import floor

import pytest

from course_lib.planner import plan

# Rajbhandari et al., "ZeRO" (arXiv 1910.02054)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1(stage: int, gigabytes: float) -> None:
    planned = plan(params=7.5e9, world_size=64, stage=stage, precision="mixed")

    assert round(sum(planned.bytes.values()) / 1e9, 1) == gigabytes
    assert planned.peak_bytes == sum(planned.bytes.values())


# GB by degree of data parallelism: 7.5 B, 128 B and 1 T parameters, each with P_os, P_os+g and P_os+g+p.
TABLE_1 = {
    1: ((120, 120, 120), (2048, 2048, 2048), (16000, 16000, 16000)),
    4: ((52.5, 41.3, 30), (896, 704, 512), (7000, 5500, 4000)),
    16: ((35.6, 21.6, 7.5), (608, 368, 128), (4750, 2875, 1000)),
    64: ((31.4, 16.6, 1.88), (536, 284, 32), (4187, 2218, 250)),
    256: ((30.4, 15.4, 0.47), (518, 263, 8), (4046, 2054, 62.5)),
    1024: ((30.1, 15.1, 0.12), (513, 257, 2), (4011, 2013, 15.6)),
}
ROWS = [(ranks, size, stage) for ranks in TABLE_1 for size in range(3) for stage in (1, 2, 3)]


def planned_gigabytes(ranks: int, size: int, stage: int) -> float:
    params = (7.5e9, 128e9, 1e12)[size]
    return sum(plan(params=params, world_size=ranks, stage=stage).bytes.values()) / 1e9


@pytest.mark.parametrize(("ranks", "size", "stage"), ROWS)
def test_table_1(ranks: int, size: int, stage: int) -> None:
    printed = TABLE_1[ranks][size][stage - 1]
    planned = planned_gigabytes(ranks, size, stage)

    if printed == int(printed) and size > 0:
        assert floor(planned) == printed  # the larger models' whole numbers are cut off
    else:
        scale = 100 if printed < 2 else 10
        assert floor(planned * scale + 0.5) / scale == printed


def test_table_1_truncates() -> None:
    cut_off = [row for row in ROWS if round(planned_gigabytes(*row)) > TABLE_1[row[0]][row[1]][row[2] - 1] >= 100]

    assert (1024, 1, 2) in cut_off  # 257.75 is printed as 257
    assert (64, 2, 2) in cut_off  # 2218.75 as 2218
    assert all(size > 0 for _, size, _ in cut_off)  # the 7.5 B columns are rounded: 41.25 is printed as 41.3


def largest_params(memory_bytes: int, ranks: int, stage: int) -> float:
    """Return the number of parameters whose states fill `memory_bytes`: each parameter's take the same."""
    probe = 10**9 * ranks
    return memory_bytes * probe / sum(plan(params=probe, world_size=ranks, stage=stage).bytes.values())


@pytest.mark.parametrize(("stage", "billions"), [(0, 2), (1, 7.6), (2, 14.4), (3, 128)])
def test_the_largest_model(stage: int, billions: float) -> None:
    assert round(largest_params(32 * 10**9, 64, stage) / 1e9, 1) == billions


# The 16 Ψ family


@pytest.mark.parametrize(
    ("precision", "stage", "whole", "sharded"),
    [
        ("mixed", 0, 16, 0), ("mixed", 1, 4, 12), ("mixed", 2, 2, 14), ("mixed", 3, 0, 16),
        ("fp32", 0, 16, 0), ("fp32", 1, 8, 8), ("fp32", 2, 4, 12), ("fp32", 3, 0, 16),
        ("mixed_fp32_accumulation", 0, 20, 0), ("mixed_fp32_accumulation", 1, 8, 12),
        ("mixed_fp32_accumulation", 2, 2, 18), ("mixed_fp32_accumulation", 3, 0, 20),
        ("bf16", 0, 8, 0), ("bf16", 1, 4, 4), ("bf16", 2, 2, 6), ("bf16", 3, 0, 8),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_bytes_per_parameter(precision: str, stage: int, whole: int, sharded: int, ranks: int) -> None:
    psi = 64 * 10**6
    planned = plan(params=psi, world_size=ranks, stage=stage, precision=precision)

    assert sum(planned.bytes.values()) == whole * psi + sharded * psi // ranks


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 112), (1, 63), (2, 38.5), (3, 14)])
def test_seven_billion_on_eight_ranks_in_fp32(stage: int, gigabytes: float) -> None:
    assert sum(plan(params=7e9, world_size=8, stage=stage, precision="fp32").bytes.values()) == gigabytes * 1e9


def test_wrong_claims_are_wrong() -> None:
    none, one, two = (sum(plan(params=7e9, world_size=8, stage=s, precision="fp32").bytes.values()) for s in range(3))
    mixed = plan(params=7e9, world_size=8, stage=1)

    assert 1 - one / none == 0.4375  # "stage 1 halves it"
    assert 1 - two / none == 0.65625  # "stage 2 saves 75 %"
    assert mixed.bytes["optimizer"] == 12 * 7e9 / 8  # "only 8 bytes are sharded": the masters are, too
    assert round(sum(mixed.bytes.values()) / 2**30, 1) == 35.9  # not 58.7 GiB


# The PyTorch recipe "Shard Optimizer States with ZeroRedundancyOptimizer": 20 x Linear(2000, 2000), Adam, 2 ranks.

RECIPE = [shape for _ in range(20) for shape in ((2000, 2000), (2000,))]


def test_zero_redundancy_optimizer_saves_half_of_adams_states() -> None:
    given = {"params": RECIPE, "world_size": 2, "precision": "fp32", "engine": "torch"}
    whole, half = (plan(stage=stage, **given) for stage in (0, 1))

    assert whole.bytes["optimizer"] == 2 * 4 * 20 * 2000 * 2001 + 4 * 40  # two moments, and a count for each tensor
    assert half.bytes["optimizer"] == whole.bytes["optimizer"] // 2
