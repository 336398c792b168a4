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
from .timing.cost import Link
from .timing.hardware import HARDWARE, LINKS
from .training.settings import LOSSES
from .training.shapes import Transformer

PUBLISHED = Path(__file__).parent / "published"
GIB = 2**30
CONTEXT_BYTES = 1.5e9
"""What `nvidia-smi` counts and torch does not, about: CUDA's context and libraries."""

_SLOWER = replace(HARDWARE["a100-infiniband"], network=Link(**LINKS["network"], bandwidth=50e9))
MACHINES = HARDWARE | {
    "a100, 4 x 100 Gb RoCE": _SLOWER, "a100, 4 x 100 Gb Omni-Path": _SLOWER,
    "h200 nodes": replace(HARDWARE["h200"], network=HARDWARE["h100-infiniband"].network),
}  # fmt: skip
"""Machines by the name in the files: with the networks of InternLM's and BLOOM's clusters, four ports of 100 Gb/s."""
RAN, OUT_OF_MEMORY, CRASHED = "ran", "ran out of memory", "crashed or ran out of memory"
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
        """The planner's verdict on whether the run fits."""
        return verdict(self.plan, MACHINES[self.hardware])


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

    @cached_property
    def verdicts(self) -> dict[str, Counter[str]]:
        """How many runs the planner says fit, may fit and do not fit, by how they ended."""
        return {ended: Counter(run.fits for run in self.runs if run.given and run.ended == ended)
                for ended in (RAN, OUT_OF_MEMORY, CRASHED)}  # fmt: skip

    def table(self) -> str:
        """Return every compared value as a line."""
        head = f"{'source':26}  {'model':11}  {'parallelism':34}  {'value':12}    planned  published    error"
        return "\n".join([head, *map(str, self.compared)])

    def __str__(self) -> str:
        """Return the summary by source, model and sharding, the verdicts, and the rows that are left out."""
        groups: dict[tuple[str, str, str], list[float]] = {}
        for one in self.compared:
            for name in (f"{one.run.model}, {one.run.kind}", f"all, {one.run.kind}"):
                groups.setdefault((one.run.source.split(" ")[0], one.what, name), []).append(one.error)
        lines = [f"{'source':12}  {'value':12}  {'runs':34}  {'number':>6}  median |error|  within 10 %    worst"]
        lines += [_summary(*key, errors) for key, errors in sorted(groups.items())]
        lines.append("")
        for ended, verdicts in self.verdicts.items():
            counts = ", ".join(f"{number} × “{name}”" for name, number in verdicts.most_common())
            lines.append(f"{verdicts.total()} {ended}. The plan's verdicts: {counts or 'none'}.")
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
    return f"{source:12}  {what:12}  {name:34}  {len(sizes):6}  {median(sizes):14.1%}  {near:11.0%}  {max(sizes):7.0%}"


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
            yield replace(run, given=given, ended=CRASHED)
            continue
        speed = float(row["tokens_per_second_per_gpu"]) if row["tokens_per_second_per_gpu"] else None
        yield replace(run, given=given, reserved=float(row["memory_gb"]) * GIB, tokens_per_second=speed, reason="")


def _foundry(rows: Iterable[dict[str, str]]) -> Iterator[Run]:
    machines = {"h100_80gb": "h100-infiniband", "a100_80gb": "a100-infiniband", "a100_40gb": "a100-40gb"}
    for row in rows:
        ranks, sequence, full = int(row["gpus"]), int(row["sequence"]), row["activation_checkpointing"] == "True"
        reason = "its utilization is of the peak in fp8" if "fp8" in row["precision"] else ""
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
    columns = {"world_size": "gpus", "stage": "zero", "batch": "micro_batch", "tensor_parallel": "tp",
               "pipeline_parallel": "pp", "implementation": "optimizer_step"}  # fmt: skip
    same = ("micro_batches", "sequence", "model_chunks", "engine", "precision", "checkpointing", "attention", "loss",
            "sequence_parallel", "compiled", "expandable", "reshard", "shard_size", "bucket_bytes")  # fmt: skip
    for row in rows:
        given: dict[str, Any] = {name: {"yes": True, "no": False}.get(value, int(value) if value.isdigit() else value)
                 for name in (*columns, *same) if (value := row[columns.get(name, name)])}  # fmt: skip
        given |= {"model": _model_of(row), "offload": row["offload"].split()}
        words = [f"{'FSDP' if row['zero'] == '3' else 'ZeRO-' + row['zero']} {row['gpus']}",
                 *_cuts(int(row["tp"]), int(row["pp"])), f"{row['micro_batch']} x {row['micro_batches']}",
                 row["checkpointing"], *(["compiled"] if given["compiled"] else [])]  # fmt: skip
        no_speed = row["note"] if row["note"].startswith("its speed") else ""
        numbers = {name: float(row[column]) * unit for name, column, unit in (
            ("active", "active_gib", GIB), ("reserved", "memory_gib", GIB), ("mfu", "mfu_percent", 0.01),
            ("tokens_per_second", "tokens_per_second_per_gpu", 1),
        ) if row[column] and not (no_speed and unit != GIB)}  # fmt: skip
        if row["memory_kind"].startswith("nvidia-smi"):
            numbers["reserved"] -= CONTEXT_BYTES
        yield Run(source=row["source"], model=row["model"], sharding=", ".join(words), hardware=row["hardware"],
                  given={} if _cannot(row) else given, reason=_cannot(row) or no_speed,
                  ended=OUT_OF_MEMORY if row["fitted"] == "oom" else RAN, **numbers)  # fmt: skip


def _cannot(row: dict[str, str]) -> str:
    """Return why a row cannot be described as settings; "" if it can."""
    if row["hardware"] not in MACHINES:
        return f"no {row['hardware']} is described"
    return "" if row["loss"] in LOSSES else "a loss that computes the logits in pieces is not planned"


def _model_of(row: dict[str, str]) -> Transformer:
    counts = {name: int(row[name]) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    counts |= {"head_size": 128, "vectors": 256} if row["model"] == "qwen3-32b" else {}
    gated, sequence = row["gated"] == "yes", int(row["sequence"])
    learned = not gated and not row["source"].startswith("BigScience")  # whose ALiBi has no parameters
    return Transformer(
        name=row["model"], positions=sequence * learned, context=sequence, gated=gated, tied=row["tied"] == "yes",
        dropout="dropout on" in row["note"], source=row["source"], **counts,
    )  # fmt: skip
