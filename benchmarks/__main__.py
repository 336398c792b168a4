"""Run every benchmark, print its table, and write all to RESULTS.md."""

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path

from course_lib.plots.canvas import COMPUTE, FAINT, INK, NOTE, SMALL, WIDTH, Canvas, text_width

from . import counterexamples, diagnosis, dryrun, lessons, meter, programs, stages, worlds
from .measure import Row, machine

BENCHMARKS = {
    "worlds": worlds.rows,
    "stages": stages.rows,
    "meter": meter.rows,
    "programs": programs.rows,
    "diagnosis": diagnosis.rows,
    "dryrun": dryrun.rows,
    "lessons": lessons.rows,
    "counterexamples": counterexamples.rows,
}
RESULTS = Path(__file__).with_name("RESULTS.md")
FIGURE = RESULTS.with_suffix(".svg")


def table(rows: Iterable[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| what | took | beside it | ratio | goal | met |", "|---|---|---|---|---|---|"]
    for row in rows:
        beside = "" if row.peer is None else f"{row.peer:.3g} {row.unit} ({row.peer_name})"
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        met = {True: "yes", False: "**no**", None: ""}[row.met]
        lines.append(f"| {row.what} | {row.ours:.3g} {row.unit} | {beside} | {ratio} | {row.goal} | {met} |")
    return "\n".join(lines)


def figure(rows: Iterable[Row]) -> str:
    """How ours stands to what it was measured beside, in the same run: to the right of 1, ours takes less. As SVG."""
    ratios = {f"{row.what} ({row.peer_name})": row.ratio for row in rows if row.ratio is not None}
    low, high = (math.log10(of(1.0, *ratios.values())) for of in (min, max))
    canvas, left = Canvas(), max(text_width(label, 11) for label in ratios) + 6

    def place(ratio: float) -> float:
        return left + (math.log10(ratio) - low) / (high - low) * (WIDTH - left)

    for label, ratio in ratios.items():
        canvas.text(left - 6, canvas.y + 11, label, "end", **SMALL)
        ends = sorted((place(1), place(ratio)))
        canvas.rect(ends[0], canvas.y, ends[1] - ends[0], 12, COMPUTE)
        canvas.y += 15
    for tick in (10.0**power for power in range(math.ceil(low), math.floor(high) + 1)):
        canvas.line(place(tick), 4, place(tick), canvas.y + 4, INK if tick == 1 else FAINT)
        canvas.text(place(tick), canvas.y + 18, f"{tick:g}", "middle", **NOTE)
    canvas.y += 34
    canvas.text(WIDTH, canvas.y, "what stands in brackets, over ours: time, or bytes", "end", **NOTE)
    return canvas.picture("", "").svg


def main() -> int:
    """Run the benchmarks named on the command line, or all; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all by default")
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    rows: list[Row] = []
    sections = [f"# Results\n\n{machine()}\n\nWritten by `make bench`. The ratio is the other way's over ours."]
    for name in names:
        measured = list(BENCHMARKS[name]())
        rows += measured
        sections.append(f"## {name}\n\n{table(measured)}")
        print(sections[-1], end="\n\n", flush=True)
    text = "\n\n".join(sections) + "\n"
    if set(names) == set(BENCHMARKS):
        RESULTS.write_text(f"{text}\n![The ratios as bars]({FIGURE.name})\n", encoding="utf-8")
        FIGURE.write_text(figure(rows), encoding="utf-8")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
