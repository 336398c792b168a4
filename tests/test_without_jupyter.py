"""A machine with torch, and without Jupyter and matplotlib: programs, worlds and checks run there."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ABSENT = ("IPython", "ipywidgets", "jupyter_client", "jupyter_core", "jupyterlab", "matplotlib", "mistune", "nbclient")
ABSENT += ("nbformat", "pygments", "traitlets")

WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""

PROGRAM = """
import torch
import torch.distributed as dist
from course_lib import World, exercises, mark, plan, report, table, zero

def train():
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 8)
    engine = zero.Stage1(net, torch.optim.AdamW)
    loss = net(torch.ones(2, 8)).sum()
    mark("forward")
    loss.backward()
    engine.step()
    return loss.item()

for backend in ("simulated", "processes"):
    run = World(2, backend=backend).run(train)
    print(run, run.memory, run.comm, run.timeline)
print(World(4, backend="dryrun").run(dist.barrier))
print(plan(model="llama-7b", world_size=8, stage=3))
print(exercises.get("ranks.hello").check(exercises.get("ranks.hello").reference).status)
"""


def run_without_jupyter(program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT + program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_worlds_engines_plans_and_checks_run() -> None:
    done = run_without_jupyter(PROGRAM)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("passed\n")


def test_a_widget_is_refused_with_what_is_absent() -> None:
    done = run_without_jupyter("from course_lib import quiz")

    assert "CourseError: course_lib.quiz is for notebooks, and IPython is not installed" in done.stderr


def test_the_command_runs() -> None:
    done = run_without_jupyter("from course_lib.commands.cli import main; sys.exit(main(['plan', 'llama3-8b']))")

    assert (done.returncode, done.stderr) == (0, "")
