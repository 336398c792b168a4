"""Lessons executed again on another world, beside simulated ranks."""

from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, World
from course_lib.commands import journal
from course_lib.commands.cli import main
from course_lib.commands.rerun import rerun, table
from course_lib.planner.timing.hardware import HARDWARE
from course_lib.world import world

LESSON = """
import torch, torch.distributed as dist
from course_lib import World
def average():
    x = torch.ones(1000)
    dist.all_reduce(x)
    return x[0].item()
run = World(4).run(average)
"""


def notebook(path: Path, *cells: str) -> Path:
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
    return path


def test_an_installed_journal_has_an_entry_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "observers", observers := [])
    monkeypatch.setattr(world, "observers", observers)
    World(2).run(int)
    journal.install(str(tmp_path / "journal"))
    World(2).run(lambda: dist.all_reduce(torch.ones(1000)))
    World(3, measure=False).run(int)

    first, second = journal.read(tmp_path / "journal")
    assert (first.peak_bytes, [call.op for call in first.collectives], first.collectives[0].members) == (
        4000,
        ["all_reduce"],
        2,
    )
    assert (second.peak_bytes, second.sent_bytes, second.collectives) == (0, 0, ())


@pytest.mark.slow
def test_a_lesson_is_executed_on_both_worlds_and_compared(tmp_path: Path) -> None:
    path = notebook(tmp_path / "lesson.ipynb", LESSON, "print(run)")
    (one,) = rerun([path], "processes", tmp_path / "copies", HARDWARE["laptop"])

    assert one.failed == ""
    assert (one.measured.runs, one.simulated.runs) == (1, 1)
    assert one.measured.peak_bytes == one.simulated.peak_bytes == 4000
    assert one.measured.sent_bytes == one.simulated.sent_bytes == 4 * 2 * 3 * 1000  # 4 ranks, 2 (N-1)/N of 4,000 bytes
    assert one.measured.bus_bandwidth > 0
    assert one.planned_seconds == pytest.approx(0.31e-3 * 6 + 6000 / 0.85e9)
    assert "rank 3: 4.0" in str(nbformat.read(one.copy, as_version=4).cells[1].outputs)
    assert "outputs" not in str(nbformat.read(path, as_version=4).cells[1].outputs), "the lesson stays as it is"
    assert "lesson  passed     1  0.00 / 0.00" in table([one], "processes", HARDWARE["laptop"])


@pytest.mark.slow
def test_a_lesson_that_fails_is_told_and_the_next_is_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [notebook(tmp_path / "a.ipynb", "1 / 0"), notebook(tmp_path / "b.ipynb", LESSON)]
    code = main(["rerun", *map(str, paths), "--world", "simulated", "--copies", str(tmp_path / "copies")])

    told = capsys.readouterr().out
    assert code == 1
    assert "a failed: ZeroDivisionError: division by zero" in told
    assert "b       passed" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--world", "processes", "--hardware", "abacus"], "abacus"),
        (["no-such.ipynb", "--world", "processes"], "no-such.ipynb cannot be read: No such file or directory"),
        (["--world", "carrier-pigeon"], "there is no such backend here; there is simulated, processes, nccl"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rerun", *arguments]) == 1
    assert told in capsys.readouterr().err


def test_a_copy_never_takes_the_place_of_its_notebook(tmp_path: Path) -> None:
    path = notebook(tmp_path / "a.ipynb", "1")
    text = path.read_text()
    with pytest.raises(CourseError, match=r"a\.ipynb would be replaced by its executed copy.*--copies FOLDER"):
        next(rerun([path], "simulated", tmp_path, HARDWARE["laptop"]))
    assert path.read_text() == text


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    path = notebook(tmp_path / "a.ipynb", "1")
    with pytest.raises(CourseError, match=r"a\.ipynb cannot be made \(File exists\).*--copies FOLDER"):
        next(rerun([path], "simulated", path, HARDWARE["laptop"]))
