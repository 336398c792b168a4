"""Lessons as they are shipped, on ranks that are processes and on a CPU that adds up in another order.

`make test` runs one of them, and `make test-elsewhere` all. No exercise is
solved here: these runs prove that later cells work with the references.
"""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from course_lib.syllabus import NOTEBOOKS

ELSEWHERE = {
    "processes": {"COURSE_WORLD": "processes"},
    "older-cpu": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
LESSONS = [path.stem for path in sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb"))]
EVERY = list(product(ELSEWHERE, LESSONS))
SOME = [("processes", "01-ranks-and-collectives")]


@pytest.mark.slow
@pytest.mark.skipif(
    "EVERY_LESSON" not in os.environ, reason="only `make test-elsewhere` runs lessons as on an older CPU"
)
def test_torch_uses_the_setting_of_an_older_cpu() -> None:
    program = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    environment = os.environ | ELSEWHERE["older-cpu"]
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)

    assert done.stdout == "DEFAULT\n"


@pytest.mark.slow
@pytest.mark.parametrize(("where", "lesson"), EVERY if "EVERY_LESSON" in os.environ else SOME)
def test_a_lesson_elsewhere(where: str, lesson: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "--as-shipped", f"notebooks/{lesson}.ipynb"],
        cwd=Path(__file__).parents[2],
        env=os.environ | ELSEWHERE[where],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    assert " passed in " in done.stdout
