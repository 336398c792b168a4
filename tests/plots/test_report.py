"""The report that ends the course: its table, its figure, its text, and what it refuses."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib import plan, report


class Training(list[list[float]]):
    """A run of a training as `report` reads it: losses, and the peak of each rank, half of which are parameters."""

    def __init__(self, losses: list[list[float]], peaks: list[int], sent: int = 0) -> None:
        super().__init__(losses)
        halves = [{"parameters": peak // 2, "optimizer": peak - peak // 2} for peak in peaks]
        moments = [SimpleNamespace(by_category=half) for half in halves]
        self.memory = [SimpleNamespace(peak_bytes=p, at_peak=m) for p, m in zip(peaks, moments, strict=True)]
        self.comm = [SimpleNamespace(sent_bytes=sent) for _ in peaks]


ALONE = Training([[4.0, 3.0]], [8000])
SHARDED = Training([[3.5, 2.5], [4.5, 3.5]], [3000, 4000], sent=1200)


def test_a_row_has_the_mean_loss_the_fullest_rank_and_what_a_step_sends() -> None:
    first, second = report({"alone": ALONE, "sharded": SHARDED}).rows
    assert first == ("alone", "1", "3.000", "below 0.0001", "8,000", "0")
    assert second == ("sharded", "2", "3.000", "below 0.0001", "4,000", "600")


def test_losses_that_differ_are_named() -> None:
    other = Training([[4.0, 3.02]], [8000])
    assert [row[3] for row in report({"alone": ALONE, "other": other}).rows] == ["below 0.0001", "below 0.1"]


def test_losses_are_drawn_only_where_they_differ() -> None:
    other = Training([[4.0, 3.02]], [8000])
    same, apart = (
        report({"alone": ALONE, "sharded": SHARDED}),
        report({"alone": ALONE, "other": other, "sharded": SHARDED}),
    )
    assert same.caption.startswith("All trainings have the losses of 'alone', within 0.001 at every step.")
    assert apart.caption.startswith("Except other, all trainings have the losses of 'alone'")
    assert "Losses" not in same.svg and "Losses" in apart.svg and apart.svg.count(">sharded<") == 1  # its bar


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_differ(value) -> None:
    """The maximum of 0 and NaN is 0 in Python, so a diverged training once had the losses of the first."""
    for losses in ([4.0, value], [value, value]):
        page = report({"alone": ALONE, "diverged": Training([losses], [8000]), "sharded": SHARDED})
        assert [row[3] for row in page.rows] == ["below 0.0001", "not finite", "below 0.0001"]
        assert page.caption.startswith("Except diverged, all trainings have the losses of 'alone'")
        assert "Losses" in page.svg


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_first_training_that_is_not_finite_has_no_equal(value) -> None:
    diverged = Training([[4.0, value]], [8000])
    page = report({"diverged": diverged, "alone": ALONE, "again": diverged})
    assert [row[3] for row in page.rows] == ["not finite"] * 3
    assert page.caption.startswith("Except alone, again, all trainings have the losses of 'diverged'")
    assert report({"diverged": diverged}).rows[0][2:4] == (f"{value:.3f}", "not finite")


def test_the_caption_names_who_needs_least() -> None:
    assert "sharded needs least, 4 kB" in report({"alone": ALONE, "sharded": SHARDED}).caption


def test_trainings_that_need_the_same_are_said_to() -> None:
    assert "peak: the same for each training, 8 kB" in report({"alone": ALONE, "again": ALONE}).caption


def test_trainings_without_tensors_have_a_report() -> None:
    """Their memory has no moment of its peak, which raised an AttributeError."""
    bare = Training([[4.0, 3.0]], [0])
    bare.memory[0].at_peak = None
    assert report({"bare": bare}).rows[0][4] == "0"


@pytest.mark.parametrize("losses", [[], 3.0])
def test_what_is_no_list_of_losses_is_refused(losses) -> None:
    with pytest.raises(ValueError, match="Return a list of losses, one a step"):
        report({"bad": Training([losses], [8000])})


def test_the_page_has_the_table_the_figure_and_the_plans_and_so_has_its_text() -> None:
    page = report({"<alone>": ALONE}, plans={"7 B": plan(params=7e9, world_size=8, stage=3)})
    assert page.html.count("<img") == 1 and page.html.count("<table") == 2
    assert "&lt;alone&gt;" in page.html and "<alone>" not in page.html
    for text in (page.html, page.text):
        assert "stage 3 on 8 ranks, mixed, adam: 14 GB at most on a rank" in text


def test_a_saved_page_is_one_that_a_browser_shows(tmp_path: Path) -> None:
    page = report({"alone": ALONE})
    page.save(tmp_path / "report.html")
    saved = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert saved.startswith("<!DOCTYPE html>") and page.html in saved


def test_no_training_and_other_steps_are_refused() -> None:
    for runs in ({}, ALONE):
        with pytest.raises(ValueError, match=r"report: no run by name in this \w+\. Give at least one"):
            report(runs)
    with pytest.raises(ValueError, match=r"'short' has 1 losses and 'alone' has 2\. Compare"):
        report({"alone": ALONE, "short": Training([[4.0]], [8000])})
    with pytest.raises(ValueError, match=r"rank 1 of 'uneven' returned 1 losses, and rank 0 returned 2\. Return"):
        report({"uneven": Training([[4.0, 3.0], [4.0]], [8000, 8000])})
