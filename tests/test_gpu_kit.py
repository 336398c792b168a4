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
    command = ["bash", str(kit / "run-gpu-checks.sh"), "out", "--only", *steps]
    environment = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=kit.parent, env=environment, capture_output=True, text=True)
    return done.returncode, json.loads((kit.parent / "out/results.json").read_text())


@pytest.mark.slow
def test_the_kit_runs_without_jupyter_and_the_repository_and_marks_a_gpus_figures_as_absent(kit: Path) -> None:
    code, results = run(kit, "links")
    absent, measured, *_ = results["steps"]["links"]

    assert (code, results["rehearsal"]) == (0, True)
    assert measured["value"] > 0
    assert (absent["value"], absent["absent"]) == (None, "needs two GPUs")
    assert "| absent: needs two GPUs |" in (kit.parent / "out/results.md").read_text()


@pytest.mark.slow
def test_what_fails_is_recorded_and_the_next_job_runs(kit: Path) -> None:
    with (kit / "benchmarks/gpu/checks.py").open("a") as file:
        file.write(
            "def links(out):\n    return {'broken': lambda: 1 / 0, 'a text': lambda: [Figure(what='it', value='1')]}\n"
        )
    code, results = run(kit, "links")
    broken, text = results["steps"]["links"]

    assert code == 1
    assert (broken["value"], broken["absent"]) == (None, "ZeroDivisionError: division by zero")
    assert (text["what"], text["value"]) == ("a text: it", "1")


def test_a_job_for_which_no_time_is_left_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "TOTAL", 0)

    assert gpu_checks.run(["links"], tmp_path) == 1
    (late,) = json.loads((tmp_path / "results.json").read_text())["steps"]["links"]
    assert late["absent"] == "TimeoutError: not begun, because the step's time was over"
