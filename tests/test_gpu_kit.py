"""The GPU kit: a folder that measures on its own, and marks the figures of a GPU as absent where there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as gpu_checks
from tests.test_without_jupyter import ABSENT

ROOT = Path(__file__).parents[1]

ALONE = f"""
import os
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def refuse(event, arguments):
    path = str(arguments[0]) if event == "open" else ""
    if "/course_lib/" in path and not path.startswith(os.path.dirname(__file__)):
        raise RuntimeError(f"opened {{path}}, which is not in the kit")

sys.meta_path.insert(0, Absent())
sys.addaudithook(refuse)
"""
"""For every Python of the kit: without Jupyter, and without any course that is not in the kit."""


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """The kit without wheels, which need a network: the packages of this Python take their place."""
    folder = tmp_path / "kit"
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command = ["make", "gpu-kit", f"KIT={folder}", "KIT_WHEELS=", f"PYTHON={sys.executable}"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (folder / "sitecustomize.py").write_text(ALONE)
    return folder


def run(kit: Path, *steps: str) -> tuple[int, dict]:
    """Run these steps without a GPU, in the folder beside the kit. Return the exit code and the results."""
    command = ["bash", str(kit / "run-gpu-checks.sh"), "out", "--cpu", "--only", *steps]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, cwd=kit.parent, env=environment, capture_output=True, text=True)
    return done.returncode, json.loads((kit.parent / "out/results.json").read_text())


@pytest.mark.slow
def test_the_kit_runs_without_jupyter_and_the_repository_and_marks_a_gpus_figures_as_absent(kit: Path) -> None:
    code, results = run(kit, "links")
    whole, absent, measured, *_ = results["steps"]["links"]

    assert (code, results["rehearsal"]) == (0, True)
    assert whole["value"] > 0 and measured["value"] > 0
    assert (absent["value"], absent["absent"]) == (None, "needs two GPUs")
    assert "| absent: needs two GPUs |" in (kit.parent / "out/results.md").read_text()


@pytest.mark.slow
def test_what_fails_is_recorded_with_its_last_lines_and_the_next_step_runs(kit: Path) -> None:
    (kit / "benchmarks/gpu/gpt.py").write_text("def gpt(out):\n    raise ValueError('a broken step')\n")
    (kit / "benchmarks/gpu/checks.py").write_text("def links(out):\n    yield 'a job', lambda: 1 / 0\n")
    code, results = run(kit, "gpt", "links")
    (gpt,), (links, job) = results["steps"].values()

    assert code == 1
    assert (gpt["value"], links["value"], job["value"]) == (None, None, None)
    assert gpt["absent"].startswith("failed with exit code 1\n")
    assert gpt["absent"].endswith("ValueError: a broken step")
    assert job["absent"] == "ZeroDivisionError: division by zero"


def test_a_step_for_which_no_time_is_left_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "TOTAL", 0)

    assert gpu_checks.run_all(["links"], tmp_path) == 1
    (whole,) = json.loads((tmp_path / "results.json").read_text())["steps"]["links"]
    assert whole["absent"] == "not begun: the 0 seconds of all steps were over"
