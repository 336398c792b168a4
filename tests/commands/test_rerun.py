"""Lessons executed again on another world, beside simulated ranks."""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist

from course_lib import World
from course_lib.commands import journal
from course_lib.commands.cli import main
from course_lib.commands.rerun import Rerun, collectives, planned_seconds, rerun, table
from course_lib.planner.timing.hardware import HARDWARE

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
    monkeypatch.setattr(World, "run", World.run)  # restored after the test
    World(2).run(int)
    journal.install(str(tmp_path / "journal"))
    World(2).run(lambda: dist.all_reduce(torch.ones(1000)))
    World(3, measure=False).run(int)

    first, second = journal.read(tmp_path / "journal")
    assert (first.peak_bytes, [(call.op, len(call.ranks)) for call in first.calls]) == (4000, [("all_reduce", 2)])
    assert (second.peak_bytes, second.sent_bytes, len(second.calls)) == (0, 0, 0)


@pytest.mark.slow
def test_a_lesson_is_executed_on_both_worlds_and_compared_although_it_fails(tmp_path: Path) -> None:
    path = notebook(tmp_path / "lesson.ipynb", LESSON, "print(run)", "1 / 0")
    (one,) = rerun([path], "processes", tmp_path / "copies")

    assert one.failed == "ZeroDivisionError: division by zero"
    for (entry,) in (one.measured, one.simulated):
        assert (entry.peak_bytes, entry.sent_bytes) == (4000, 4 * 2 * 3 * 1000)  # 4 ranks, 2 (N-1)/N of 4,000 bytes
        assert [call[:3] for call in collectives([entry])] == [("all_reduce", 4000, 4)]
    assert "\nlesson  failed  1     0.00 / 0.00  0.02 / 0.02  " in table([one], "processes", HARDWARE["laptop"])
    assert planned_seconds(one.measured, HARDWARE["laptop"]) == pytest.approx(0.31e-3 * 6 + 6000 / 0.85e9)
    assert "rank 3: 4.0" in str(nbformat.read(one.copy, as_version=4).cells[1].outputs)
    assert "outputs" not in str(nbformat.read(path, as_version=4).cells[1].outputs), "the lesson stays as it is"


@pytest.mark.parametrize(("failed", "code"), [("", 0), ("ZeroDivisionError: division by zero", 1)])
def test_the_command_prints_a_table_and_exits(
    failed: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def executed(notebooks: list[Path], *_: object) -> Iterator[Rerun]:
        for path, why in zip(notebooks, ("", failed), strict=True):
            yield Rerun(notebook=path, copy=path, failed=why, simulated=[], measured=[])

    monkeypatch.setattr("course_lib.commands.rerun.rerun", executed)
    assert main(["rerun", "a.ipynb", "b.ipynb", "--world", "simulated"]) == code
    told = capsys.readouterr().out
    assert "\na       passed  0     0.00 / 0.00" in told
    assert ("\nb failed: ZeroDivisionError: division by zero\n" in told) == bool(failed)


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
    printed = capsys.readouterr()
    assert (told in printed.err, printed.out) == (True, "")
