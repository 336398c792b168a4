"""Measure a GPU: python -m benchmarks.gpu OUT

Ranks are processes with a time limit. What was measured so far is in OUT: results.json and results.md, with traces and
snapshots beside. Without a GPU it is a rehearsal, mostly with tiny sizes.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..measure import machine
from . import checks, engines, gpt
from .figures import GPU, Figure, markdown

STEPS = {
    "tests": (checks.tests, 120),
    "engines": (engines.engines, 150),
    "recipe": (checks.recipe, 60),
    "gpt": (gpt.gpt, 100),
    "traces": (engines.traces, 40),
    "failures": (checks.failures, 50),
    "program": (checks.program, 40),
    "links": (checks.links, 40),
    "pretended": (checks.pretended, 60),
}
"""The jobs of each step, and the seconds in which they may begin; the most valuable first."""

TOTAL = 450
"""The seconds of all steps together. In a rehearsal, one step may take them all."""


def run(steps: list[str], out: Path) -> int:
    """Run the jobs of one step after the other, and write the results after each job. Return how many failed."""
    began, failed = time.monotonic(), 0
    results: dict[str, Any] = {"machine": machine(), "rehearsal": not GPU, "steps": {}}
    page = f"# GPU checks\n\n{machine()}\n\n" + "A rehearsal: a GPU's figures are absent.\n\n" * (not GPU)
    for step in steps:
        jobs, seconds = STEPS[step]
        start = time.monotonic()
        end = min(began + TOTAL, start + (seconds if GPU else TOTAL))
        results["steps"][step] = figures = list[Figure]()
        for job, measured in jobs(out).items():
            try:
                if time.monotonic() >= end:
                    raise TimeoutError("not begun, because the step's time was over")
                figures += [replace(figure, what=f"{job}: {figure.what}") for figure in measured()]
            except Exception as error:  # of whatever kind: the next job is run
                figures.append(Figure(what=job, absent=f"{type(error).__name__}: {error}"))
                failed += 1
            text = json.dumps(results, indent=1, ensure_ascii=False, default=lambda figure: figure.record)
            (out / "results.json").write_text(text, encoding="utf-8")
            (out / "results.md").write_text(f"{page}## {step}\n\n{markdown(figures)}\n", encoding="utf-8")
        page += f"## {step}\n\n{markdown(figures)}\n\n"
        print(f"{step}, {time.monotonic() - start:.0f} s\n\n{markdown(figures)}\n", flush=True)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder for what is measured")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="the steps to run (all)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sys.exit(run(options.only, options.out.resolve()) > 0)
