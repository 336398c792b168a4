"""The rounds of a ring and the swap of tokens for heads: drawn as the algorithms compute them."""

import pytest

from course_lib.parallel import Cut
from course_lib.plots import plot_ring, plot_swap
from course_lib.plots.canvas import MEMBERS
from tests.plots.test_plots import rects, texts


def rounds(cut, world_size):
    """Return for each rank its rounds, as the engine makes them: whose block, and how many pairs it computes."""
    places = [cut.places(rank) for rank in range(world_size)]
    return [
        [
            (source, int((mine[:, None] >= places[source]).sum()))
            for source in (n % world_size for n in range(rank, rank - world_size, -1))
        ]
        for rank, mine in enumerate(places)
    ]


def test_the_ranks_wait_for_the_one_that_computes_most() -> None:
    rings = {"in order": rounds(Cut.in_order(64, 4), 4), "zigzag": rounds(Cut.zigzag(64, 4), 4)}
    picture = plot_ring(rings)
    assert picture.caption.endswith(f"wait {100 * (1 - 2080 / 4 / 904):.0f} % (in order) and 0 % (zigzag) of the time, "
                                    "if messages take none.")  # fmt: skip
    assert "rank 3: block 3: 136, block 2: 256, block 1: 256, block 0: 256; together 904" in picture.text
    assert {"round 0", "round 3", "zigzag (the ranks wait 0 % of the time)"} <= texts(picture.svg)


def test_a_box_is_as_wide_as_its_work_and_work_of_nothing_has_none() -> None:
    svg = plot_ring({"a ring": [[(0, 1), (1, 0)], [(1, 1), (0, 2)]]}).svg
    first, second = sorted(rects(svg, MEMBERS[0]))
    assert second[2] == pytest.approx(2 * first[2], abs=0.2)
    assert len(rects(svg, MEMBERS[1])) == 1


def test_after_the_swap_a_rank_has_a_column() -> None:
    boxes = rects(plot_swap(3).svg, MEMBERS[0])
    assert len({x for x, *_ in boxes}) == 3 + 1 and len({y for _, y, *_ in boxes}) == 3
