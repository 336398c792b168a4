"""Published runs on GPUs, planned and compared: how far the planner can be trusted. `course validate` prints it.

Each file in `published/` has a reader, which describes a row as settings, or says why it cannot be described.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from .explain import size, verdict
from .plan import Plan, plan
from .timing.hardware import HARDWARE
from .training.shapes import Transformer

PUBLISHED = Path(__file__).parent / "published"
GIB = 2**30
_MPT = {"125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16),
        "3b": (32, 2560, 20), "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56),
        "70b": (80, 8192, 64)}  # fmt: skip
"""Layers, hidden, heads of llm-foundry's MPT models; with 50,368 tokens they have the published parameter counts."""

_SMALL = {
    name: Transformer(
        name=name, layers=layers, hidden=hidden, heads=32, kv_heads=32, ffn=4 * hidden, vocab=vocab, positions=0,
        context=2048, gated=False, dropout=False, tied=False, source="config.json of the released weights",
    )
    for name, layers, hidden, vocab in (("phi-1.5", 24, 2048, 51200), ("stablelm-3b", 16, 4096, 50432))
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published run.

    Attributes:
        source, model: where it was published, and of which model.
        sharding: the parallelism in words.
        hardware: a name from `HARDWARE`.
        given: the arguments of `plan`; empty if the run cannot be described.
        active, reserved: bytes, as torch's allocator reports them; None if not published.
        tokens_per_second, mfu: of each GPU; None if not published, or for a reason.
        reason: why the run, or its speed, is not compared.
        fitted: whether the run is known to have fitted its GPUs.
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
    fitted: bool = True

    @property
    def kind(self) -> str:
        """Whether tensor parallelism (TP), pipeline parallelism (PP) or both cut the model."""
        return " and ".join(name for name in ("TP", "PP") if name in self.sharding) or "data parallel"

    @cached_property
    def plan(self) -> Plan:
        return plan(**self.given)

    @cached_property
    def fits(self) -> str:
        """The planner's verdict on whether the run fits; it did."""
        return verdict(self.plan, HARDWARE[self.hardware])


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

    def __str__(self) -> str:
        values = [size(value) if self.what in ("active", "reserved") else f"{value:.4g}"
                  for value in (self.planned, self.published)]  # fmt: skip
        run = self.run
        return (
            f"{run.source:26}  {run.model:11}  {run.sharding:34}  {self.what:12}  {values[0]:>9}  {values[1]:>9}  "
            f"{self.error:+7.1%}"
        )


@dataclass(frozen=True, kw_only=True)
class Validation:
    """All published runs, compared."""

    runs: tuple[Run, ...]

    @cached_property
    def compared(self) -> tuple[Compared, ...]:
        """Every published value that can be planned."""
        return tuple(one for run in self.runs if run.given for one in _compare(run))

    @property
    def called_too_large(self) -> list[Run]:
        """The runs that fitted, and that the planner says do not fit."""
        return [run for run in self.runs if run.given and run.fitted and run.fits == "does not fit"]

    def table(self) -> str:
        """Return every compared value as a line."""
        head = f"{'source':26}  {'model':11}  {'parallelism':34}  {'value':12}    planned  published    error"
        return "\n".join([head, *map(str, self.compared)])

    def __str__(self) -> str:
        """Return the summary by source, model and sharding, the verdicts, and the rows that are left out."""
        groups: dict[tuple[str, str, str], list[float]] = {}
        for one in self.compared:
            for name in (f"{one.run.model}, {one.run.kind}", f"all, {one.run.kind}"):
                groups.setdefault((one.run.source, one.what, name), []).append(one.error)
        lines = [f"{'source':26}  {'value':12}  {'runs':34}  {'number':>6}  median |error|  within 10 %    worst"]
        lines += [_summary(*key, errors) for key, errors in sorted(groups.items())]
        fitted = sum(run.fitted for run in self.runs if run.given)
        lines.append(f"\n{fitted} runs fitted. The plan calls {len(self.called_too_large)} of them too large.")
        verdicts = Counter(run.fits for run in self.runs if run.given and not run.fitted)
        if verdicts:
            counts = ", ".join(f"{number} × “{name}”" for name, number in verdicts.most_common())
            lines.append(f"{verdicts.total()} crashed or ran out of memory. The plan's verdicts: {counts}.")
        reasons = Counter(f"{run.source}: {run.reason}" for run in self.runs if run.reason)
        lines += [f"Not compared, {count} × {reason}" for reason, count in reasons.items()]
        return "\n".join(lines)


def validate() -> Validation:
    """Plan the published runs that come with the course, and compare."""
    readers = {"ultrascale-playbook-runs.csv": _playbook, "llm-foundry-fsdp.csv": _foundry, "other-runs.csv": _others}
    readers["adapters-experts-fp8.csv"] = _described
    return Validation(runs=tuple(run for name, read in readers.items() for run in read(_rows(PUBLISHED / name))))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _described(rows: Iterable[dict[str, str]]) -> Iterator[Run]:
    for row in rows:
        given: dict[str, Any] = {"model": _SMALL.get(row["model"], row["model"])}
        for name, value in (pair.split("=") for pair in row["given"].split()):
            given[name] = int(value) if value.isdecimal() else {"yes": True}.get(value, value)
        reserved, speed = (float(row[name] or 0) or None for name in ("reserved_bytes", "tokens_per_second_per_gpu"))
        yield Run(source=row["source"], model=row["model"], sharding=row["sharding"], hardware=row["hardware"],
                  given={} if row["note"] else given, reason=row["note"], reserved=reserved,
                  tokens_per_second=speed)  # fmt: skip


def _cuts(tensor: int, pipeline: int) -> list[str]:
    return [f"{name} {ranks}" for name, ranks in (("TP", tensor), ("PP", pipeline)) if ranks > 1]


def _summary(source: str, what: str, name: str, errors: Iterable[float]) -> str:
    sizes = [abs(error) for error in errors]
    near = sum(one <= 0.1 for one in sizes) / len(sizes)
    return f"{source:26}  {what:12}  {name:34}  {len(sizes):6}  {median(sizes):14.1%}  {near:11.0%}  {max(sizes):7.0%}"


def _compare(run: Run) -> Iterator[Compared]:
    machine = HARDWARE[run.hardware]
    for what, published, planned in (
        ("active", run.active, lambda: run.plan.active_bytes),
        ("reserved", run.reserved, lambda: run.plan.reserved_bytes),
        ("tokens/s/GPU", run.tokens_per_second, lambda: run.plan.tokens_per_second(machine)),
        ("MFU", run.mfu, lambda: run.plan.mfu(machine)),
    ):
        if published is not None:
            yield Compared(run=run, what=what, planned=planned(), published=published)


def _playbook(rows: Iterable[dict[str, str]]) -> Iterator[Run]:
    for row in rows:
        dp, tensor, pipeline = (int(row[name]) for name in ("dp", "tp", "pp"))
        ranks, stage = dp * tensor * pipeline, int(row["zero"])
        words = [f"ZeRO-{stage}", f"DP {dp}", *_cuts(tensor, pipeline), f"{row['micro_batch']} x {row['accumulation']}"]
        run = Run(source="Ultra-Scale Playbook", model=row["model"], sharding=", ".join(words),
                  hardware="h100-infiniband", given={}, reason="the run crashed or ran out of memory")  # fmt: skip
        given = {
            "model": f"playbook-{row['model'].lower()}", "world_size": ranks, "stage": stage, "sequence": 4096,
            "batch": int(row["micro_batch"]), "micro_batches": int(row["accumulation"]), "tensor_parallel": tensor,
            "pipeline_parallel": pipeline, "engine": "nanotron", "precision": "mixed_fp32_accumulation",
            "attention": "flash_copies", "loss": "parallel", "implementation": "fused",
        }  # fmt: skip
        if not row["memory_gb"]:
            yield replace(run, given=given, fitted=False)
            continue
        speed = float(row["tokens_per_second_per_gpu"]) if row["tokens_per_second_per_gpu"] else None
        yield replace(run, given=given, active=float(row["memory_gb"]) * GIB, tokens_per_second=speed, reason="")


def _foundry(rows: Iterable[dict[str, str]]) -> Iterator[Run]:
    machines = {"h100_80gb": "h100-infiniband", "a100_80gb": "a100-infiniband", "a100_40gb": "a100-40gb"}
    for row in rows:
        ranks, sequence, full = int(row["gpus"]), int(row["sequence"]), row["activation_checkpointing"] == "True"
        reason = "fp8 is not planned" if "fp8" in row["precision"] else ""
        reason = reason or ("offload of activations is not planned" if row["activation_offload"] == "True" else "")
        given = {
            "model": _mpt(row["model"], sequence), "world_size": ranks, "stage": 3, "engine": "torch",
            "precision": "mixed", "batch": int(row["micro_batch"]), "micro_batches": int(row["accumulation"]),
            "sequence": sequence, "checkpointing": "full" if full else "none", "attention": "flash", "loss": "fused",
            "implementation": "fused",
        }  # fmt: skip
        yield Run(source="llm-foundry", model=f"MPT {row['model']}", hardware=machines[row["gpu"]],
                  sharding=f"FSDP {ranks} {row['gpu'][:4]}, {sequence}{', full' if full else ''}",
                  given={} if reason else given, mfu=float(row["mfu_percent"]) / 100, reason=reason)  # fmt: skip


def _mpt(name: str, sequence: int) -> Transformer:
    layers, hidden, heads = _MPT[name]
    return Transformer(
        name=f"MPT {name}", layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden, vocab=50368,
        positions=sequence, context=sequence, gated=False, dropout=False, tied=True, source="llm-foundry",
    )  # fmt: skip


def _others(rows: Iterable[dict[str, str]]) -> Iterator[Run]:
    numbers = ("world_size", "stage", "tensor_parallel", "pipeline_parallel", "model_chunks", "batch", "micro_batches",
               "sequence")  # fmt: skip
    for row in rows:
        given: dict[str, Any] = {name: int(row[name]) for name in numbers}
        given |= {name: row[name] for name in ("model", "engine", "checkpointing", "loss")}
        given |= {name: row[name] == "yes" for name in ("compiled", "expandable")}
        given |= {"precision": "mixed_fp32_accumulation", "attention": "flash", "implementation": "fused"}
        given["reshard"] = given["pipeline_parallel"] == 1  # the units stay whole between the micro-batches
        words = [f"FSDP {row['world_size']}", *_cuts(given["tensor_parallel"], given["pipeline_parallel"]),
                 row["checkpointing"], *(["compiled"] if given["compiled"] else [])]  # fmt: skip

        published: dict[str, Any] = {name: float(row[column]) * unit for name, column, unit in (
            ("active", "active_gib", GIB), ("reserved", "reserved_gib", GIB), ("mfu", "mfu_percent", 0.01),
            ("tokens_per_second", "tokens_per_second_per_gpu", 1),
        ) if row[column] and not (row["note"] and unit != GIB)}  # fmt: skip
        yield Run(source=row["source"], model=row["model"], sharding=", ".join(words), hardware=row["hardware"],
                  given=given, reason=row["note"], **published)  # fmt: skip
