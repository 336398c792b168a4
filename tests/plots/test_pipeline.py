"""The chart of a schedule: each pass as early as its input allows, and the bubble of the formula."""

import xml.etree.ElementTree as ET

import pytest

from course_lib.parallel import one_forward_one_backward
from course_lib.plots import plot_schedule
from course_lib.plots.canvas import THEMES
from tests.plots.test_plots import SVG, contrast, rects, texts


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 2), (4, 8), (4, 2)])
def test_the_ranks_wait_as_long_as_the_formula_says(ranks, micro_batches) -> None:
    picture = plot_schedule([one_forward_one_backward(rank, ranks, micro_batches) for rank in range(ranks)])
    assert f"wait {100 * (ranks - 1) / (micro_batches + ranks - 1):.0f} % of the time" in picture.caption
    assert picture.svg.count(">0</text>") == 2 * ranks


def test_parts_of_a_rank_shorten_the_wait() -> None:
    picture = plot_schedule([one_forward_one_backward(rank, 4, 8, chunks=2) for rank in range(4)])
    assert f"wait {100 * 3 / (2 * 8 + 3):.0f} % of the time" in picture.caption


def test_schedules_of_one_model_share_a_time_axis() -> None:
    picture = plot_schedule(
        {f"{parts} parts": [one_forward_one_backward(rank, 4, 8, parts) for rank in range(4)] for parts in (1, 2)}
    )
    assert "wait 27 % (1 parts) and 16 % (2 parts) of the time" in picture.caption
    assert "1 parts (the ranks wait 27 % of the time)" in texts(picture.svg)
    one, two = picture.text.split("2 parts\n")
    assert "rank 0: forward 0 at 0, forward 1 at 1," in one and "rank 0: forward 0 at 0, forward 1 at 0.5," in two
    grounds = [width for _, _, width, _ in rects(picture.svg, "var(--shade)")]
    assert max(grounds) == pytest.approx(700) and min(grounds) == pytest.approx(700 * 19 / 22, abs=0.1)


def test_a_backward_may_take_longer() -> None:
    picture = plot_schedule([[("forward", 0), ("backward", 0)]] * 2, backward=2)
    assert picture.text == "rank 0: forward 0 at 0, backward 0 at 4\nrank 1: forward 0 at 1, backward 0 at 2"


def test_a_schedule_that_cannot_go_on_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rank 1: \('backward', 1, 0\)"):
        plot_schedule([[("forward", 0)], [("backward", 0), ("forward", 0)]])


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_boxes_are_outlined_where_the_theme_is_nearly_as_dark_or_light(theme) -> None:
    svg = plot_schedule([one_forward_one_backward(rank, 4, 8, chunks=2) for rank in range(4)]).svg
    boxes = [box for box in ET.fromstring(svg).iter(f"{{{SVG}}}rect") if box.attrib["fill"].startswith("#")]
    outlines = {box.get("stroke", box.attrib["fill"]) for box in boxes}
    assert outlines == {"var(--faint)"} and contrast(theme["faint"], theme["shade"]) >= 3
