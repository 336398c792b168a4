"""`course validate` prints how far the planner is from published runs."""

import pytest

from course_lib import planner
from course_lib.commands.cli import main


def test_it_prints_a_summary_and_the_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runs = planner.validate().runs
    fitted, crashed = (next(run for run in runs if run.given and run.fitted is fits) for fits in (True, False))
    two = planner.Validation(runs=(fitted, crashed))
    monkeypatch.setattr(planner, "validate", lambda: two)

    assert main(["validate", "--rows"]) == 0
    printed = capsys.readouterr().out
    assert "planned  published    error" in printed
    assert "1 runs fitted. The plan calls 0 of them too large." in printed
    assert f"1 crashed or ran out of memory. The plan's verdicts: 1 × “{crashed.fits}”." in printed
