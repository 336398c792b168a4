"""The page of a run: its sections, what it escapes, folds and leaves out, and how large it is."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, World, mark
from course_lib.plots import RunReport
from course_lib.world.errors import reported
from course_lib.world.rank_threads.printing import MOST_LINES, folded

HEADINGS = ["Outcome", "Memory", "Traffic", "Time", "Layout", "Replay", "Program"]
TAG = "<script>alert(1)</script>"


def training() -> float:
    held = torch.arange(1000.0).add_(dist.get_rank())
    mark("start")
    for _ in range(2):
        dist.all_reduce(held)
    mark("after sum")
    if dist.get_rank() == 0:
        print("the first rank")
    print(TAG)
    return held.sum().item()


def of_a_collective() -> None:
    dist.all_reduce(torch.ones(1))


def report_of_failure(world: World, program) -> RunReport:
    with pytest.raises(RankError) as caught:
        world.run(program)
    return caught.value.report()


def test_a_page_has_a_title_and_each_section_with_its_numbers() -> None:
    report = World(4, replay=True).run(training).report()
    page, text = report.html, str(report)
    assert re.findall("<h2>(.*?)</h2>", page) == HEADINGS
    assert "<title>training</title>" in page and "<h1>training</h1>" in page
    assert re.match(rf"training\n4 ranks, [\d.]+ m?s, simulated, torch {re.escape(torch.__version__)}, ", text)
    assert "\nAll 4 ranks returned.\n" in text
    assert re.search(
        r"^ranks 0-3  returned  4 kB: communication 4 kB.*  12 kB: all_reduce 12 kB in 2 calls  ", text, re.MULTILINE
    )
    assert re.search(r"^all_reduce #2 +held at .* line \d+  Replicate +Replicate +← every", text, re.MULTILINE)
    assert text.endswith(f"[rank 0]\nthe first rank\n[ranks 0-3]\n{TAG}")


def test_every_figure_has_an_alternative_text_and_a_text_form() -> None:
    page = World(2).run(training).report().html
    assert len(re.findall(r'<img alt="[^"]{20,}"', page)) == page.count("<figure") == page.count("<details>") == 3


def test_text_of_the_program_is_shown_and_not_obeyed() -> None:
    def fails() -> None:
        print(TAG)
        dist.barrier()
        raise ValueError(TAG)

    fails.__name__ = TAG
    report = report_of_failure(World(2), fails)
    assert TAG not in report.html and report.html.count("&lt;script&gt;alert(1)") >= 4
    assert f"both ranks raised ValueError: {TAG}" in str(report)


def test_a_page_loads_nothing() -> None:
    page = World(2, replay=True).run(training).report().html
    assert not re.findall(r"""(?:src|href)=["'](?!data:)[^"']*|@import|url\((?!#)""", page.replace("srcdoc=", ""))


def test_a_saved_page_is_the_page(tmp_path: Path) -> None:
    report = World(2).run(lambda: print("half of a letter: \udcc3")).report()
    report.save(tmp_path / "run.html")
    saved = (tmp_path / "run.html").read_text("utf-8")
    assert saved == report.html.replace("\udcc3", "?") and saved.startswith("<!DOCTYPE html>")


def test_a_notebook_shows_the_page_in_a_frame_and_as_text() -> None:
    shown = World(2).run(training).report()._repr_html_()
    assert shown.startswith("<iframe title='Report of training'") and "<summary>The report as text</summary>" in shown


def test_a_page_of_many_calls_is_small() -> None:
    def program() -> None:
        x = torch.ones(1000)
        for step in range(400):
            dist.all_reduce(x)
            x = x / 4
            if step % 40 == 0:
                mark(f"step {step}")

    report = World(4, replay=True).run(program).report()
    assert len(report.html.encode()) < 800_000
    assert re.search(r"Each place in the figure has the highest of up to \d+ changes\.", str(report))
    assert re.search(r"Calls less than [\d.]+ [mµ]?s apart are drawn as one\.", str(report))


def test_a_long_replay_begins_late_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> None:
        for _ in range(7):
            dist.barrier()

    run = World(2, replay=True).run(program)
    assert "begins late" not in str(run.report())
    monkeypatch.setattr(reported, "MOST_EVENTS", 7)
    report = report_of_failure(World(2), lambda: (program(), 1 / 0))
    assert "The replay begins late: it has the last 3 of up to 7 calls of a rank." in str(report)
    assert re.findall(r'\["call","barrier #(\d)"', report.html) == ["5", "6", "7"]


def test_many_ranks_are_folded_and_few_lanes_drawn() -> None:
    text = str(World(12).run(training).report())
    assert re.search(r"^ranks 0-11  returned ", text, re.MULTILINE)
    assert "Of 12 ranks, the figure shows the 4 that waited least and the 4 that most." in text
    assert text.count("  waited for peers") == 8


def test_ranks_in_a_row_are_folded_around_one_that_differs() -> None:
    def fails() -> None:
        if dist.get_rank() == 2:
            raise ValueError("no data")
        dist.barrier()

    text = str(report_of_failure(World(7), fails))
    assert re.search(r"^ranks 0, 1, 3-6  stopped in barrier #1 at .* line \d+ ", text, re.MULTILINE)
    assert re.search(r"^rank 2  +raised ValueError: no data at .* line \d+ ", text, re.MULTILINE)


def test_only_rows_with_a_remark_are_shown_of_a_long_table_of_layouts() -> None:
    report = World(2).run(of_a_collective).report()
    row = ("all_reduce", "x", "Partial", "Replicate", "")
    remarked = (*row[:-1], "← reduced twice?")
    text = str(replace(report, layout=[row] * 150 + [remarked] * 2))
    assert "Of 152 rows, the 2 with a remark are shown." in text and text.count("all_reduce  x ") == 2
    text = str(replace(report, layout=[row] * 350 + [remarked] * 150))
    assert "Of 500 rows, the first 100 of 150 with a remark are shown." in text
    text = str(replace(report, layout=[row] * 150))
    assert "Of 150 rows, the 100 that came first are shown." in text and text.count("all_reduce  x ") == 100


def test_what_was_not_measured_or_kept_is_named() -> None:
    text = str(World(2, measure=False).run(of_a_collective).report())
    assert "\nMemory was not measured.\n" in text
    assert (
        "\nTo have the replay here, make the world with World(…, replay=True), or run the program with --replay.\n"
        in text
    )
    assert text.endswith("No rank printed anything.")


@pytest.mark.parametrize("program", [dist.barrier, lambda: None])
def test_nobody_is_asked_to_keep_values_that_are_kept(program) -> None:
    text = str(World(2, replay=True).run(program).report())
    assert "--replay" not in text
    assert "The replay is in the page." in text or "No rank made a call to replay." in text


def test_a_dry_run_has_the_page_of_its_rank() -> None:
    text = str(World(64, backend="dryrun", rank=63).run(of_a_collective).report())
    assert text.startswith("of_a_collective\nrank 63 of 64, dryrun, ")
    assert "\nRank 63 returned.\n" in text
    assert re.search(
        r"^rank 63  returned  4 bytes: .*  7 bytes: all_reduce 7 bytes in 1 call  unknown$", text, re.MULTILINE
    )
    assert "A dry run computes nothing, so its times mean nothing." in text
    assert "One rank ran, so there is nothing to compare." in text


def test_a_warning_and_a_note_about_the_machine_are_shown() -> None:
    def forgets() -> None:
        handle = dist.all_reduce(torch.ones(1), async_op=True)
        print(type(handle).__name__)

    with pytest.warns(UserWarning, match="never waited"):
        run = World(2).run(forgets)
    run.about = replace(run.about, note="GPUs are <pretended>.")
    page = run.report().html
    assert "<p>GPUs are &lt;pretended&gt;.</p></header>" in page
    assert '<ul class="warnings"><li>Both ranks never waited for all_reduce #1' in page


# Lines of the program


def test_equal_lines_are_folded_and_each_rank_keeps_its_order() -> None:
    output = {0: "a\nextra\nb\nc\n", 1: "a\nb\nc\n", 2: "a\nb\nmine\n"}
    assert folded(output) == [
        ([0, 1, 2], "a"),
        ([0], "extra"),
        ([0, 1, 2], "b"),
        ([0, 1], "c"),
        ([2], "mine"),
    ]


def test_colours_of_a_terminal_are_dropped() -> None:
    assert folded({0: "\x1b[1;32mloss\x1b[0m 3\x1b[K"}) == [([0], "loss 3")]


def test_lines_that_are_left_out_are_counted() -> None:
    ((_, text),) = folded({0: "\n".join(map(str, range(MOST_LINES + 1000)))})
    lines = text.splitlines()
    assert lines[0] == "0" and lines[-1] == str(MOST_LINES + 999)
    assert lines[MOST_LINES // 2] == "… 1,000 lines are left out here …" and len(lines) == MOST_LINES + 1
