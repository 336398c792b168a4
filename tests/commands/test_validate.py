"""`course validate` prints how far the planner is from published runs."""

import pytest

from course_lib import planner
from course_lib.commands.cli import main
from course_lib.planner.validation import CRASHED, RAN


def test_it_prints_a_summary_and_the_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runs = planner.validate().runs
    ran, crashed = (next(run for run in runs if run.given and run.ended == ended) for ended in (RAN, CRASHED))
    two = planner.Validation(runs=(ran, crashed))
    monkeypatch.setattr(planner, "validate", lambda: two)

    assert main(["validate", "--rows"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].split()[-3:] == ["planned", "published", "error"]
    assert f"1 ran. The plan's verdicts: 1 × “{ran.fits}”." in printed
    assert f"1 crashed or ran out of memory. The plan's verdicts: 1 × “{crashed.fits}”." in printed
    assert "0 ran out of memory. The plan's verdicts: none." in printed
