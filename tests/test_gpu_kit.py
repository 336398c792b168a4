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


@pytest.mark.slow
def test_the_kit_runs_alone_marks_a_gpus_figures_as_absent_and_goes_on_after_a_failure(kit: Path) -> None:
    with (kit / "benchmarks/gpu/checks.py").open("a") as file:
        file.write("its = links\n\ndef links(out):\n    return {'broken': lambda: 1 / 0} | dict(its(out))\n")
    environment = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    command = ["bash", str(kit / "run-gpu-checks.sh"), str(kit.parent / "out"), "--only", "links"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True)

    results = json.loads((kit.parent / "out/results.json").read_text())
    broken, absent, measured, *_ = results["steps"]["links"]
    assert (done.returncode, results["rehearsal"]) == (1, True)
    assert (broken["value"], broken["absent"]) == (None, "ZeroDivisionError: division by zero")
    assert (absent["value"], absent["absent"]) == (None, "needs two GPUs")
    assert measured["value"] > 0 and "absent" not in measured
    assert "| absent: needs two GPUs |" in (kit.parent / "out/results.md").read_text()


def test_a_job_for_which_no_time_is_left_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "TOTAL", 0)

    assert gpu_checks.run(["links"], tmp_path) == 1
    (late,) = json.loads((tmp_path / "results.json").read_text())["steps"]["links"]
    assert late["absent"] == "TimeoutError: not begun, because the step's time was over"


def test_the_page_says_what_the_record_has() -> None:
    record = json.loads((ROOT / "benchmarks/gpu/records/nvidia-h200/results.json").read_text(encoding="utf-8"))
    more, less = {}, {}  # than the meter or the plan: in the figure's unit, and as a share
    for step in ("engines", "recipe", "gpt"):
        for figure in record["steps"][step]:
            if figure["value"] is not None:
                beside = next(iter(figure["beside"].values()))
                more[figure["what"]], less[figure["what"]] = figure["value"] - beside, 1 - figure["value"] / beside
    steps = [value for what, value in more.items() if what.endswith("held after step")]
    recipe = [value for what, value in more.items() if "until" in what and "foreach" in what and "model" not in what]
    peaks = [100 * value for what, value in less.items() if what.endswith("peak")]
    faster = [-100 * value for what, value in less.items() if "1.3 B" in what and "compiled=False: speed" in what]

    speeds = {figure["what"]: figure["value"] for figure in record["steps"]["gpt"] if "speed" in figure["what"]}
    compiled = {what: value for what, value in speeds.items() if "compiled=True" in what}
    slower = [
        100 - 100 * value / speeds[what.replace("compiled=True", "compiled=False")] for what, value in compiled.items()
    ]

    page = " ".join((ROOT / "docs/gpu.md").read_text(encoding="utf-8").split())
    for phrase in (
        f"every engine holds {min(steps):.0f} to {max(steps):.0f} MB more than the meter counts",
        f"Later peaks are {min(recipe):.0f} to {max(recipe):.0f} MB higher",
        f"Peaks are {max(peaks):.1f} % lower to {-min(peaks):.1f} % higher",
        f"the larger model is {min(faster):.0f} % to {max(faster):.0f} % faster",
        f"slower than without, by {min(slower):.0f} % to {max(slower):.0f} %",
        f"FSDP2 held {more['FSDP2, ranks: 1: most until backward']:.0f} MB more",
        f"`Stage2` on two ranks {more['Stage2, ranks: 2: most until backward']:.0f} MB",
    ):
        assert phrase in page
    small = [value for what, value in less.items() if "0.35 B" in what and "compiled=False: speed" in what]
    assert min(small) > 0.5  # more than twice the time
    assert [value for what, value in more.items() if "model is made" in what] == [0.0] * 4
