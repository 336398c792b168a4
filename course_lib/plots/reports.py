"""The last page of the course: a report that compares trainings by loss, memory and communication, next to plans.

A training is a run whose ranks returned their losses, one for each step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

from ..planner import Plan, how, size
from ..planner.explain import sent
from .canvas import Canvas
from .charts.curves import draw_curves
from .comparison import draw_bars, held_by
from .memory import fullest
from .picture import Picture
from .tables import Table

EQUAL = 1e-3  # below this difference, losses are equal, and a curve of them would show one line
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
        planned = Table(head=("plan", "cost"), rows=tuple(self.plans.items())).html if self.plans else ""
        return Table(head=HEAD, rows=self.rows).html + super().html + planned

    def save(self, path: str | Path) -> None:
        """Write the page to an HTML file."""
        style = "font-family: sans-serif; max-width: 60em; margin: 2em auto; color: black; background: white"
        head = '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Report</title>'
        Path(path).write_text(f'{head}<body style="{style}">{self.html}</body></html>', encoding="utf-8")


def report(runs: Mapping[str, Any], plans: Mapping[str, Plan] | None = None) -> Report:
    """Compare trainings with the first one, and return the page.

    Args:
        runs: by name. Each rank of a run returned its losses, a number for each step and at least one. They are
            averaged over the ranks; ranks that have averaged them already return the same. Of a rank,
            `memory[rank].peak_bytes`, `memory[rank].at_peak.by_category` and `comm[rank].sent_bytes` are read. Bytes
            sent before the first step count, spread over all steps.
        plans: plans for larger models, by name.

    Raises:
        ValueError: there is no run by name, a rank returned no list of losses, or the number of steps differs from the
            first rank's or the first run's.
    """
    if not runs or not isinstance(runs, Mapping):
        kind = type(runs).__name__
        raise ValueError(f"report: no run by name in this {kind}. Give at least one, {{'one process': run}}.")
    losses = {name: _averaged(name, run) for name, run in runs.items()}
    first, *others = losses
    for name in others:
        if len(losses[name]) != len(losses[first]):
            sizes = f"{name!r} has {len(losses[name])} losses and {first!r} has {len(losses[first])}"
            raise ValueError(f"report: {sizes}. Compare trainings of the same steps.")
    rows = tuple(_row(name, run, losses[name], losses[first]) for name, run in runs.items())
    planned = {name: _planned(plan) for name, plan in (plans or {}).items()}
    canvas = Canvas()
    apart = {name: losses[name] for name in others if _apart(losses[name], losses[first]) >= EQUAL}
    if apart:
        canvas.title("Losses")
        lines = {first: losses[first]} | apart
        draw_curves(canvas, lines, [1.0 + step for step in range(len(losses[first]))], "step", "loss")
    canvas.title("Most that a rank held at once")
    draw_bars(canvas, {name: held_by(name, run) for name, run in runs.items()})
    text = "\n".join([repr(Table(head=HEAD, rows=rows)), *(f"{name}: {words}" for name, words in planned.items())])
    return Report(**vars(canvas.picture(_caption(first, apart, runs), text)), rows=rows, plans=planned)


def _averaged(name: str, run: Any) -> list[float]:
    for rank, losses in enumerate(run):
        if not hasattr(losses, "__len__") or not len(losses):
            raise ValueError(
                f"report: rank {rank} of {name!r} returned {losses!r}. Return a list of losses, one a step."
            )
        if len(losses) != len(run[0]):
            sizes = f"rank {rank} of {name!r} returned {len(losses)} losses, and rank 0 returned {len(run[0])}"
            raise ValueError(f"report: {sizes}. Return one loss for each step on every rank.")
    return [sum(step) / len(step) for step in zip(*run, strict=True)]


def _row(name: str, run: Any, losses: list[float], first: list[float]) -> tuple[str, ...]:
    sent = max(comm.sent_bytes for comm in run.comm) // len(losses)
    peak = fullest(run.memory).peak_bytes
    return name, str(len(run)), f"{losses[-1]:.3f}", _rounded(_apart(losses, first)), f"{peak:,}", f"{sent:,}"


def _apart(losses: list[float], first: list[float]) -> float:
    """Return the largest difference: infinity where one is not a number, which `max` would pass over."""
    differences = [abs(loss - other) for loss, other in zip(losses, first, strict=True)]
    return max(differences) if all(map(isfinite, differences)) else inf


def _rounded(difference: float) -> str:
    """Round up to the next power of ten: the digits of a rounding error carry no information, and machines differ."""
    if difference == inf:
        return "not finite"
    return f"below {next(bound for bound in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, inf) if difference < bound):g}"


def _planned(plan: Plan) -> str:
    return (
        f"{plan.model.name}, {how(plan.settings)}: {size(plan.peak_bytes)} at most on a rank, "
        f"{sent(plan)} sent in a step"
    )


def _caption(first: str, apart: Mapping[str, Any], runs: Mapping[str, Any]) -> str:
    peaks = {name: fullest(run.memory).peak_bytes for name, run in runs.items()}
    least = min(peaks, key=peaks.__getitem__)
    needs = f"{least} needs least" if peaks[least] < max(peaks.values()) else "the same for each training"
    others = f"Except {', '.join(apart)}, all" if apart else "All"
    return (
        f"{others} trainings have the losses of {first!r}, within {EQUAL:g} at every step. The bars show the fullest "
        f"rank at its peak: {needs}, {size(peaks[least])}."
    )
