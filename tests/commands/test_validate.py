"""`course validate` prints how far the planner is from published runs."""

from pathlib import Path

import pytest

from course_lib.commands.cli import main
from course_lib.planner.validation import PUBLISHED


def test_it_prints_a_summary_and_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (PUBLISHED / "other-runs.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "other-runs.csv").write_text("\n".join(lines[:2]), encoding="utf-8")

    assert main(["validate", "--rows", "--data", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "planned  published    error" in printed
    assert "1 runs fitted. The plan calls 0 of them too large." in printed


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--data", str(tmp_path)]) == 1
    assert "Name a folder with published runs." in capsys.readouterr().err
