"""The scoreboard: a row for each of the learner's own stages, kept from lesson to lesson. The page of all results."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, World, mark, my_results, scoreboard
from course_lib.progress import Progress
from course_lib.widgets import scores
from course_lib.widgets.scores import Scoreboard, measures
from course_lib.widgets.scores import of_the_course as OF_THE_COURSE

NUMEL = 1000


GOALS = {"ZeRO-1": {"held_bytes": 16_000, "peak_bytes": 20_000, "sent_bytes": 6_000}}


@pytest.fixture(autouse=True)
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Progress:
    monkeypatch.setattr(scores, "of_the_course", lambda: {})
    progress = Progress(tmp_path / "progress.sqlite3")
    monkeypatch.setattr(scores, "own_progress", lambda: progress)
    return progress


def stage() -> torch.Tensor:
    held = torch.ones(NUMEL * (1 + dist.get_rank()))
    dist.all_reduce(torch.ones(NUMEL))
    return held


def test_each_number_of_a_run_is_that_of_the_rank_with_the_most() -> None:
    run = World(4).run(stage)
    row = measures(run)
    seconds = row.pop("seconds")

    assert row == {"held_bytes": 16_000, "peak_bytes": 20_000, "sent_bytes": 6_000}
    assert seconds == max(rank.end - rank.start for rank in run.timeline) > 0


def test_what_is_held_is_measured_at_the_last_mark() -> None:
    def step() -> None:
        state = torch.ones(NUMEL)
        mark("after the step")
        del state

    assert measures(World(2).run(step))["held_bytes"] == 4_000


def test_a_row_is_added_kept_and_replaced_by_its_name(progress: Progress) -> None:
    assert repr(scoreboard()).startswith("Nothing is measured yet.")
    scoreboard("data parallel", World(4).run(stage))
    scoreboard("ZeRO-1", World(2).run(stage))
    board = scoreboard("data parallel", World(1).run(stage))

    head, first, second, _ = repr(board).splitlines()
    assert head.split() == ["held", "peak", "sent", "time"]
    assert first.split()[:5] == ["data", "parallel", "4", "kB", "8"]
    assert second.split()[:6] == ["ZeRO-1", "8", "kB", "12", "kB", "4"]
    assert list(scoreboard().rows) == list(progress.scores()) == ["data parallel", "ZeRO-1"]


def test_in_a_notebook_it_is_a_table_and_no_name_becomes_html() -> None:
    html = scoreboard("<b>mine</b>", World(2).run(stage))._repr_html_()

    assert '<th scope="row">&lt;b&gt;mine&lt;/b&gt;</th><td>8 kB<div class="course-bar" style="width: 100%">' in html
    assert "<table>" not in Scoreboard({})._repr_html_()


def test_the_courses_own_stages_come_first_in_grey_and_without_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "of_the_course", lambda: GOALS)
    empty = scoreboard()
    assert repr(empty).splitlines()[1] == "the course's ZeRO-1       16 kB       20 kB        6 kB"
    board = scoreboard("ZeRO-1", World(2).run(stage))
    assert [line.split("  ")[0] for line in repr(board).splitlines()[1:3]] == ["the course's ZeRO-1", "ZeRO-1"]
    html = board._repr_html_()
    assert html.index('<tr class="course-goal"><th scope="row">the course&#x27;s ZeRO-1</th>') < html.rindex("<tr><th")
    assert list(board.rows) == ["ZeRO-1"]


@pytest.mark.slow
def test_each_stage_of_the_course_holds_less_than_the_one_before() -> None:
    rows = OF_THE_COURSE()
    held = [row["held_bytes"] for row in rows.values()]
    assert list(rows) == ["data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3"] and held == sorted(held, reverse=True)
    assert rows["ZeRO-1"]["sent_bytes"] == rows["ZeRO-2"]["sent_bytes"] < rows["ZeRO-3"]["sent_bytes"]
    assert OF_THE_COURSE() is rows and "seconds" not in rows["ZeRO-1"]


def test_a_name_needs_a_run() -> None:
    with pytest.raises(CourseError, match="takes both a name and a run, or neither"):
        scoreboard("ZeRO-1")


def test_the_page_of_ones_results_has_the_scoreboard_and_what_is_solved(progress: Progress, tmp_path: Path) -> None:
    assert repr(my_results()).startswith("Nothing is measured yet.")
    scoreboard("ZeRO-3", World(2).run(stage))
    progress.finish_attempt(progress.begin_attempt("start.first", "source"), "passed", [])
    my_results().save(tmp_path / "results.html")

    assert repr(my_results()).splitlines()[1].startswith("ZeRO-3 ")
    assert repr(my_results()).splitlines()[-1] == "00 · Start here: 1 of 2 exercises and quizzes"
    page = (tmp_path / "results.html").read_text("utf-8")
    assert '<th scope="row">ZeRO-3</th>' in page
    assert "<li>00 · Start here: 1 of 2 exercises and quizzes</li>" in page
