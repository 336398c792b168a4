"""The last page of the course: a report that compares trainings by loss, memory and communication, next to plans.

A training is a run whose ranks returned their losses, one for each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..planner import Plan, how, size
from .memory import CATEGORIES
from .picture import INK, PALETTE, Picture, drawing, in_bytes, picture

LOOKS = tuple(zip(PALETTE, ("o", "s", "^", "D", "v", "P", "X"), strict=True))
HEAD = ("training", "ranks", "last loss", "largest difference", "peak of a rank, bytes", "sent in a step, bytes")


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Picture):
    """A page with a table, a figure, and plans.

    Attributes:
        rows: the table, line by line.
        plans: descriptions of the plans, by name.
    """

    rows: tuple[tuple[str, ...], ...]
    plans: Mapping[str, str]

    @property
    def html(self) -> str:
        """The table, the figure with its caption and its text, and the plans."""
        head = "".join(f'<th scope="col">{name}</th>' for name in HEAD)
        lines = "".join(
            f'<tr><th scope="row">{escape(row[0])}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        planned = "".join(
            f"<dt>{escape(name)}</dt><dd>{escape(description)}</dd>" for name, description in self.plans.items()
        )
        return f"<table><tr>{head}</tr>{lines}</table>{super().html}" + (f"<dl>{planned}</dl>" if planned else "")

    def save(self, path: str | Path) -> None:
        """Write the page to an HTML file."""
        style = "font-family: sans-serif; max-width: 60em; margin: 2em auto; color: black; background: white"
        Path(path).write_text(
            f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Report</title>'
            f'<body style="{style}">{self.html}</body></html>',
            encoding="utf-8",
        )


def report(runs: Mapping[str, Any], plans: Mapping[str, Plan] | None = None) -> Report:
    """Compare trainings with the first one, and return the page.

    Args:
        runs: by name. Each rank of a run returned its losses, a number for each step and at least one. Of a rank,
            `memory[rank].peak_bytes`, `memory[rank].at_peak.by_category` and `comm[rank].sent_bytes` are read. Bytes
            sent before the first step count, spread over all steps.
        plans: plans for larger models, by name.

    Raises:
        ValueError: there is no run, or the number of steps differs from the first run's.
    """
    if not runs:
        raise ValueError("report({}): there is no training to tell of. Give it at least one, {'one process': run}.")
    losses = {name: _losses(run) for name, run in runs.items()}
    first, *others = losses
    for name in others:
        if len(losses[name]) != len(losses[first]):
            raise ValueError(
                f"report: {name!r} has {len(losses[name])} losses and {first!r} has {len(losses[first])}. "
                "Compare trainings of the same steps."
            )
    rows = tuple(_row(name, run, losses[name], losses[first]) for name, run in runs.items())
    planned = {name: _planned(plan) for name, plan in (plans or {}).items()}
    text = "\n".join([*_aligned([HEAD, *rows]), *(f"{name}: {description}" for name, description in planned.items())])
    with drawing():
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_losses(left, losses)
        _draw_peaks(right, runs)
        shown = picture(figure, caption=_caption(losses, runs), text=text)
    return Report(svg=shown.svg, caption=shown.caption, text=text, rows=rows, plans=planned)


def _losses(run: Any) -> list[float]:
    """Return the losses, averaged over the ranks. Ranks that have averaged them already return the same."""
    return [sum(step) / len(step) for step in zip(*run, strict=True)]


def _row(name: str, run: Any, losses: list[float], first: list[float]) -> tuple[str, ...]:
    difference = max(abs(loss - other) for loss, other in zip(losses, first, strict=True))
    sent = max(comm.sent_bytes for comm in run.comm) // len(losses)
    return (
        name,
        str(len(run)),
        f"{losses[-1]:.3f}",
        _rounded(difference),
        f"{_fullest(run).peak_bytes:,}",
        f"{sent:,}",
    )


def _rounded(difference: float) -> str:
    """Round up to the next power of ten: the digits of a rounding error carry no information, and machines differ."""
    return f"below {next(bound for bound in BOUNDS if difference < bound):g}"


BOUNDS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, float("inf"))


def _fullest(run: Any) -> Any:
    """Return the memory of the rank that held most at once."""
    return max(run.memory, key=lambda memory: memory.peak_bytes)


def _planned(plan: Plan) -> str:
    return (
        f"{plan.model.name}, {how(plan.settings)}: {size(plan.peak_bytes)} at most on a rank, "
        f"{size(plan.sent_bytes)} sent in a step"
    )


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _draw_losses(axes: Axes, losses: Mapping[str, list[float]]) -> None:
    """Draw the losses. Equal losses overlap, so each line gets smaller marks than the one below it."""
    for number, ((name, values), (colour, marker)) in enumerate(zip(losses.items(), cycle(LOOKS), strict=False)):
        marks = max(11 - 2 * number, 2)
        axes.plot(range(1, len(values) + 1), values, color=colour, marker=marker, markersize=marks, label=name)
    axes.set(xlabel="step", ylabel="loss", title="Losses")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8)


def _draw_peaks(axes: Axes, runs: Mapping[str, Any]) -> None:
    names, peaks = list(runs), [_fullest(run).at_peak.by_category for run in runs.values()]
    ends = [0] * len(runs)
    for category, look in CATEGORIES.items():
        held = [peak.get(category, 0) for peak in peaks]
        if any(held):
            axes.barh(names, held, left=ends, label=category, edgecolor=INK, linewidth=0.5, **look)
        ends = [end + more for end, more in zip(ends, held, strict=True)]
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda count, _: in_bytes(count))
    axes.set_title("Most that a rank held at once")
    axes.legend(fontsize=8)


def _caption(losses: Mapping[str, list[float]], runs: Mapping[str, Any]) -> str:
    least = min(runs, key=lambda name: _fullest(runs[name]).peak_bytes)
    last = [values[-1] for values in losses.values()]
    spread = _rounded(max(last) - min(last))
    return (
        f"Left, losses: where trainings are the same, their lines lie on each other; the last differ by {spread}. "
        f"Right, the fullest rank at its peak: {least} needs least, {in_bytes(_fullest(runs[least]).peak_bytes)}."
    )
