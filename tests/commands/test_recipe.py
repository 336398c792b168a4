"""The recipe of torch's documentation gives its published table on a laptop."""

from functools import partial

import pytest

from course_lib.commands import recipe
from course_lib.commands.cli import main
from course_lib.meter import Peak

SMALL = {"layers": 4, "width": 256}  # a weight is then 512 blocks of CUDA's allocator, a bias 2


def temporaries(peak: Peak, size: int) -> dict[str, int]:
    """How many blocks of `size` bytes each operator had made that are for nothing lasting."""
    blocks = (holding for holding in peak.holdings if holding.category == "other" and holding.block_bytes == size)
    return {holding.operator: holding.count for holding in blocks}


def test_a_small_one_trains_alike_with_and_without_sharding() -> None:
    with_zero, without = recipe.run(True, **SMALL), recipe.run(False, **SMALL)
    assert with_zero[0] == with_zero[1] == without[0] == without[1]
    assert recipe.peaks_mb(with_zero)[:3] == recipe.peaks_mb(without)[:3]


def test_the_last_denominator_is_still_held_where_weights_come_before_biases() -> None:
    weight = 4 * 256 * 256
    for sharded, expected in ((True, {"sqrt": 1, "div": 2}), (False, {"sqrt": 1, "div": 1})):
        peak = recipe.run(sharded, **SMALL).memory[0].at_peak
        assert peak.operator == "div"
        assert temporaries(peak, weight) == expected


def test_the_table_compares_with_what_was_published() -> None:
    table = recipe.table(recipe.run(True, **SMALL), recipe.PUBLISHED_MB[True])
    assert table.splitlines()[0].split() == ["most", "memory", "held", "until", "measured", "published", "difference"]
    assert table.splitlines()[1].split() == ["the", "model", "is", "made", "1.1", "MB", "335", "MB", "-99.7%"]


@pytest.mark.slow
def test_the_whole_recipe_gives_the_published_table() -> None:
    with_zero = recipe.run(True)  # lesson 11 runs it without sharding, too
    published = recipe.PUBLISHED_MB[True]
    assert with_zero[0] == with_zero[1] == pytest.approx(-3453.6, abs=0.1)  # the digits after that are the CPU's own
    assert recipe.peaks_mb(with_zero)[:3] == pytest.approx(published[:3], rel=0.01)
    one_weight = 16_777_216 / 1e6  # torch 2.13 holds one more than the torch of the published table
    assert recipe.peaks_mb(with_zero)[3] == pytest.approx(published[3] + one_weight, rel=0.001)
    assert 2 * recipe.PUBLISHED_MB[False][3] < 4000  # what `report` says that it takes


def test_course_recipe_tells_both_runs_the_sums_and_the_peaks(capsys, monkeypatch) -> None:
    monkeypatch.setattr(recipe, "report", partial(recipe.report, **SMALL))
    assert main(["recipe"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("This takes half a minute")
    for part in (
        "With ZeroRedundancyOptimizer\n",
        "Without\n",
        "   2 x       262,144 bytes  other          float32 [256, 256]",
    ):
        assert told.count(part) == 1
    assert told.count("sum of parameters") == 2
