"""Lessons on ranks that are processes show what is shipped, which simulated ranks have printed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("lesson", ["01-ranks-and-collectives", "06-zero-3"])  # `make test-processes` takes them all
def test_a_lesson_on_processes(lesson: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", f"notebooks/{lesson}.ipynb"],
        cwd=ROOT,
        env=os.environ | {"COURSE_WORLD": "processes"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout
    assert " passed in " in done.stdout
