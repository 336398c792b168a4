"""Published runs on GPUs, planned and compared: how far the planner can be trusted. `course validate` prints it.

A row of a file in `published/` describes a run as settings, or says why it cannot be described.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from .fit import verdict
from .plan import Plan, plan
from .spelling import SETTINGS, read
from .text import aligned, size
from .timing.cost import Link
from .timing.hardware import HARDWARE, LINKS
from .training.checks import PlanError, rows
from .training.models import MODELS, described

PUBLISHED = Path(__file__).parent / "published"
GIB = 2**30
CONTEXT_BYTES = 1.5e9
"""What `nvidia-smi` counts and torch does not, about: CUDA's context and libraries."""

_SLOWER = replace(HARDWARE["a100-infiniband"], network=Link(**LINKS["network"], bandwidth=50e9))
MACHINES = HARDWARE | {
    "a100, 4 x 100 Gb RoCE": _SLOWER, "a100, 4 x 100 Gb Omni-Path": _SLOWER,
    "h200 nodes": HARDWARE["h200-infiniband"],
    "h200, 4 a node": replace(HARDWARE["h200"], devices=4, network=Link(**LINKS["network"], bandwidth=200e9)),
    "h100 96 GB": replace(HARDWARE["h100-infiniband"], memory_bytes=102 * 10**9),
}  # fmt: skip
"""Machines by the name in the files: with the networks of InternLM's and BLOOM's clusters, four ports of 100 Gb/s, and
of KempnerForge's, four of 400; and torchtitan's GPUs of 95.04 GiB."""
RAN, OUT_OF_MEMORY, CRASHED = "ran", "ran out of memory", "crashed or ran out of memory"
_FILES: dict[str, dict[str, str]] = {
    "ultrascale-playbook-runs.csv": {
        "source": "Ultra-Scale Playbook", "named": "playbook-", "hardware": "h100-infiniband", "sequence": "4096",
        "engine": "nanotron", "precision": "mixed_fp32_accumulation", "attention": "flash_copies", "loss": "parallel",
        "implementation": "fused",
    },
    "llm-foundry-fsdp.csv": {
        "source": "llm-foundry", "stage": "3", "engine": "torch", "attention": "flash", "loss": "fused",
        "implementation": "fused",
    },
    "other-runs.csv": {},
    "adapters-experts-fp8.csv": {}, "later-runs.csv": {},
}  # fmt: skip
"""The files of `published/`, and what all of their rows have. Columns are named as settings and as `Transformer`'s."""
_MEASURED: dict[str, dict[str, float]] = {
    "active": {"active_gib": GIB, "active_bytes": 1}, "reserved": {"reserved_gib": GIB, "reserved_bytes": 1},
    "mfu": {"mfu_percent": 0.01}, "tokens_per_second": {"tokens_per_second": 1},
}  # fmt: skip
"""The columns of what was measured, and their units."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published run.

    Attributes:
        source, model: where it was published, and of which model.
        sharding: the parallelism in words.
        hardware: a name from `MACHINES`.
        given: the arguments of `plan`; empty if the run cannot be described.
        active, reserved: bytes, as torch's allocator reports them; None if not published.
        tokens_per_second, mfu: of each GPU; None if not published, or for a reason.
        reason: why the run, or its speed, is not compared.
        ended: `RAN`, `OUT_OF_MEMORY`, or `CRASHED` where the source does not say which.
    """

    source: str
    model: str
    sharding: str
    hardware: str
    given: dict[str, Any]
    active: float | None = None
    reserved: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    reason: str = ""
    ended: str = RAN

    @property
    def kind(self) -> str:
        """Whether tensor parallelism (TP), pipeline parallelism (PP) or both cut the model."""
        return " and ".join(name for name in ("TP", "PP") if name in self.sharding) or "data parallel"

    @cached_property
    def plan(self) -> Plan:
        return plan(**self.given)

    @cached_property
    def fits(self) -> str:
        """The planner's verdict on whether the run fits; "is refused" if it cannot run at all."""
        try:
            return verdict(self.plan, MACHINES[self.hardware])
        except PlanError:
            return "is refused"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A planned and a published value of a run. `what` is "active", "reserved", "tokens/s/GPU" or "MFU"."""

    run: Run
    what: str
    planned: float
    published: float

    @property
    def error(self) -> float:
        """The planned value's relative error."""
        return self.planned / self.published - 1

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of a table."""
        values = [size(value) if self.what in ("active", "reserved") else f"{value:.4g}"
                  for value in (self.planned, self.published)]  # fmt: skip
        return self.run.source, self.run.model, self.run.sharding, self.what, *values, f"{self.error:+.1%}"


@dataclass(frozen=True, kw_only=True)
class Validation:
    """All published runs, compared."""

    runs: tuple[Run, ...]

    @cached_property
    def compared(self) -> tuple[Compared, ...]:
        """Every published value that can be planned."""
        return tuple(one for run in self.runs if run.given for one in _compare(run))

    @cached_property
    def verdicts(self) -> dict[str, Counter[str]]:
        """How many runs the planner says fit, may fit and do not fit, by how they ended."""
        return {ended: Counter(run.fits for run in self.runs if run.given and run.ended == ended)
                for ended in (RAN, OUT_OF_MEMORY, CRASHED)}  # fmt: skip

    def table(self) -> str:
        """Return every compared value as a line."""
        head = ("source", "model", "parallelism", "value", "planned", "published", "error")
        return aligned([head, *(one.row for one in self.compared)])

    def __str__(self) -> str:
        """Return the summary by source, model and sharding, the verdicts, and the rows that are left out."""
        groups: dict[tuple[str, str, str], list[float]] = {}
        for one in self.compared:
            for name in (f"{one.run.model}, {one.run.kind}", f"all, {one.run.kind}"):
                groups.setdefault((one.run.source.split(" ")[0], one.what, name), []).append(one.error)
        rows: list[tuple[str, ...]] = [("source", "value", "runs", "number", "median |error|", "within 10 %", "worst")]
        for key, errors in sorted(groups.items()):
            sizes = [*map(abs, errors)]
            near = sum(one <= 0.1 for one in sizes) / len(sizes)
            rows.append((*key, str(len(sizes)), f"{median(sizes):.1%}", f"{near:.0%}", f"{max(sizes):.0%}"))
        lines = [aligned(rows), ""]
        for ended, verdicts in self.verdicts.items():
            counts = ", ".join(f"{number} × “{name}”" for name, number in verdicts.most_common())
            lines.append(f"{verdicts.total()} {ended}. The plan's verdicts: {counts or 'none'}.")
        reasons = Counter(f"{run.source}: {run.reason}" for run in self.runs if run.reason)
        lines += [f"Not compared, {count} × {reason}" for reason, count in reasons.items()]
        return "\n".join(lines)


def validate() -> Validation:
    """Plan the published runs that come with the course, and compare."""
    return Validation(runs=tuple(_run(same | row) for name, same in _FILES.items() for row in rows(PUBLISHED / name)))


def _run(row: dict[str, str]) -> Run:
    texts = row | dict(pair.split("=") for pair in row.get("given", "").split())
    given = {name: read(name, texts[name]) for name in SETTINGS if texts.get(name)}
    if row.get("layers"):
        given["model"] = described({"name": row["model"], "context": texts["sequence"], **row})
    else:
        given["model"] = MODELS[row.get("named", "") + row["model"].lower()]
    measured = {name: float(row[column]) * unit for name, units in _MEASURED.items() for column, unit in units.items()
                if row.get(column) and not (row.get("no_speed") and unit < GIB)}  # fmt: skip
    if row.get("memory_kind", "").startswith("nvidia-smi"):
        measured["reserved"] -= CONTEXT_BYTES
    ended = row.get("ended") or (RAN if measured else CRASHED)
    words = row.get("sharding") or _sharding(given)
    reason = row.get("cannot") or row.get("no_speed") or (f"the run {ended}" if ended == CRASHED else "")
    return Run(source=row["source"], model=row["model"], sharding=words, hardware=row["hardware"], reason=reason,
               given={} if row.get("cannot") else given, ended=ended, **measured)  # fmt: skip


def _sharding(given: dict[str, Any]) -> str:
    tensor, pipeline = given["tensor_parallel"], given["pipeline_parallel"]
    cuts = [f"{name} {ranks}" for name, ranks in (("TP", tensor), ("PP", pipeline)) if ranks > 1]
    words = [f"ZeRO-{given['stage']}", f"DP {given['world_size'] // (tensor * pipeline)}", *cuts]
    return ", ".join([*words, f"{given['batch']} x {given['micro_batches']}"])


def _compare(run: Run) -> Iterator[Compared]:
    machine = MACHINES[run.hardware]
    for what, published, planned in (
        ("active", run.active, lambda: run.plan.active_bytes),
        ("reserved", run.reserved, lambda: run.plan.reserved_bytes),
        ("tokens/s/GPU", run.tokens_per_second, lambda: run.plan.tokens_per_second(machine)),
        ("MFU", run.mfu, lambda: run.plan.mfu(machine)),
    ):
        if published is not None:
            yield Compared(run=run, what=what, planned=planned(), published=published)
