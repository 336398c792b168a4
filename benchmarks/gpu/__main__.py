"""Measure a GPU: python -m benchmarks.gpu OUT

Each step is a process with a time limit. What it has measured until it ends, or is ended, is in OUT: results.json and
results.md, with traces and snapshots beside. Without a GPU, or with --cpu, it is a rehearsal, mostly with tiny sizes.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

LIMITS = {
    "tests": 120, "engines": 100, "recipe": 60, "gpt": 150, "traces": 40, "failures": 50, "program": 40, "links": 40,
    "pretended": 60,
}  # fmt: skip
"""Seconds of each step, the most valuable first. "pretended" is the recipe again, with the GPU hidden."""

TOTAL = 450
"""Seconds of all steps together. In a rehearsal, one step may take five times as long."""

LAST_LINES = 15


def measure(step: str, out: Path) -> int:
    """Run one step, and write each figure as soon as it is there. Return how many of its measurements failed."""
    from . import checks, engines, gpt
    from .figures import Figure

    module: Any = {"engines": engines, "traces": engines, "gpt": gpt}.get(step, checks)
    failed = 0
    with (out / f"{step}.jsonl").open("w", encoding="utf-8") as file:
        for what, measured in getattr(module, step)(out):
            try:
                figures = list(measured())
            except Exception as error:  # of whatever kind: the next one is measured
                figures = [Figure(what=what, absent=f"{type(error).__name__}: {error}")]
                failed += 1
            for figure in figures:
                print(json.dumps(asdict(figure)), file=file, flush=True)
    return failed


def run_all(steps: list[str], out: Path) -> int:
    """Run one step after the other, and write the results after each. Return how many have not come to their end."""
    from ..measure import machine
    from .figures import GPU, Figure, markdown

    patience = 1 if GPU else 5
    end, unfinished = time.monotonic() + TOTAL, 0
    results: dict[str, Any] = {"machine": machine(), "rehearsal": not GPU, "steps": {}}
    page = f"# GPU checks\n\n{machine()}\n\n" + "A rehearsal: a GPU's figures are absent.\n\n" * (not GPU)
    for step in steps:
        if step == "pretended" and not GPU:  # "recipe" has pretended GPUs already
            continue
        limit = min(patience * LIMITS[step], end - time.monotonic())
        late = [Figure(what="the whole step", absent=f"not begun: the {TOTAL} seconds of all steps were over")]
        figures = run_step(step, out, limit) if limit > 0 else late
        results["steps"][step] = list(map(asdict, figures))
        page += f"## {step}\n\n{markdown(figures)}\n\n"
        unfinished += figures[0].value is None
        print(f"{step}: {figures[0].text}", flush=True)
        (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")
        (out / "results.md").write_text(page, encoding="utf-8")
    return unfinished


def run_step(step: str, out: Path, limit: float) -> list[Any]:
    """Run one step in a process of its own. Return the seconds that it took, or why it failed, and its figures."""
    from .figures import Figure

    file, log = out / f"{step}.jsonl", out / f"{step}.log"
    file.write_text("")
    command = [sys.executable, "-m", "benchmarks.gpu", str(out), "--step", step, *["--cpu"] * (step == "pretended")]
    start = time.monotonic()
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True) as child,
    ):
        try:
            code = child.wait(limit)
            why = f"failed with exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with its ranks
            why = f"stopped after {limit:.0f} s"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    value, absent = (None, "\n".join([why, *lines])) if why else (time.monotonic() - start, "")
    measured = [Figure(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return [Figure(what="the whole step", value=value, unit="s", absent=absent), *measured]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder for what is measured")
    parser.add_argument("--cpu", action="store_true", help="rehearse without a GPU, also where there is one")
    parser.add_argument("--only", nargs="+", choices=LIMITS, default=list(LIMITS), help="the steps to run (all)")
    parser.add_argument("--step", choices=LIMITS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is imported
    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    sys.exit((measure(options.step, out) if options.step else run_all(options.only, out)) > 0)
