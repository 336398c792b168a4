"""`course validate` prints how far the planner is from published runs."""

import pytest

from course_lib import planner
from course_lib.commands.cli import main


def test_it_prints_a_summary_and_the_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llama = planner.Validation(runs=tuple(run for run in planner.validate().runs if run.model == "llama-7b")[:1])
    monkeypatch.setattr(planner, "validate", lambda: llama)

    assert main(["validate", "--rows"]) == 0
    printed = capsys.readouterr().out
    assert "planned  published    error" in printed
    assert "1 runs fitted. The plan calls 0 of them too large." in printed
