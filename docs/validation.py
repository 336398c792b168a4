"""Write the numbers of docs/validation.md: `python -m docs.validation`. A test compares the page with this."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from math import inf
from pathlib import Path
from statistics import median

from course_lib.planner import Run, Validation, validate
from course_lib.planner.timing.hardware import RATES_OF_2025
from course_lib.planner.validation import CRASHED, MACHINES

PAGE = Path(__file__).parent / "validation.md"
BLOCK = re.compile(r"(<!-- written by docs/validation.py -->\n).*?(<!-- end -->)", re.DOTALL)

MEMORY, RESERVED, SPEED, MFU = "active", "reserved", "tokens/s/GPU", "MFU"
VALUES = {MEMORY: "peak memory", RESERVED: "reserved memory", SPEED: "tokens a second a GPU", MFU: "FLOPs utilization"}
FITTED = ("torchtitan PR 165 FSDP2", "torchtitan December 2024")
"""Sources of the three eager rows, on 8 GPUs, that `TRAFFIC["eager"]` is fitted on."""
OLD = ("torchtitan PR 165 ", "torchtitan December 2024")
TITAN = (*OLD, "torchtitan PR 481", "torchtitan docs", "torchtitan issue", "torchtitan H200")
"""Sources of torchtitan's runs of Llama."""
POLLED = {2: 0.6, None: 1.2}
"""Seconds that a playbook run with polled messages takes at least for a micro-batch, with two stages and with more.

The benchmark's p2p.py (nanotron, branch nouamane/bench2) sleeps for 0.1 s after each message that describes a tensor:
two messages for each of two tensors in forward and of one in backward, which a middle stage sends and receives.
"""


def cut(run: Run, name: str) -> int:
    """Return `tensor_parallel` or `pipeline_parallel` of a run."""
    return int(run.given.get(name, 1))


def polled(run: Run) -> bool:
    """Return whether a playbook run is slow enough to have polled, whatever the plan says."""
    settings, stages = run.plan.settings, cut(run, "pipeline_parallel")
    gpus = stages * cut(run, "tensor_parallel")
    return stages > 1 and settings.tokens / ((run.tokens_per_second or 0.0) * gpus) >= POLLED.get(stages, POLLED[None])


LATE = 1.1e-3
"""Seconds for each layer and tensor-parallel rank by which slow runs are slower than their plan."""


def late(run: Run) -> bool:
    """Return whether a run with tensor parallelism is slower than planned by `LATE` or more."""
    settings, known = run.plan.settings, run.plan.model.transformer
    lost = settings.tokens_per_rank / (run.tokens_per_second or inf) - run.plan.step_seconds(MACHINES[run.hardware])
    return lost >= LATE * settings.tensor_parallel * settings.micro_batches * (known.layers if known else 0)


def playbook(
    kind: str, across: bool | None = None, slow: bool | None = None, half: bool = False
) -> Callable[[Run], bool]:
    """Return what keeps the playbook's runs of a kind.

    With tensor parallelism across nodes of 8, within, or both; that may have polled, cannot have, or both; of the half
    that nothing is fitted on, or all.
    """

    def keep(run: Run) -> bool:
        return (
            (run.source, run.kind) == ("Ultra-Scale Playbook", kind)
            and (across is None or (cut(run, "tensor_parallel") > 8) == across)
            and (slow is None or polled(run) == slow)
            and (not half or judging(run))
        )

    return keep


def judging(run: Run) -> bool:
    """Return whether nothing that is new in this version is fitted on the run: half of all, by a hash."""
    return sha256(f"{run.model}{run.sharding}".encode()).digest()[-1] % 2 == 1


def titan(compiled: bool, new: bool = False) -> Callable[[Run], bool]:
    """Return what keeps torchtitan's and torchao's runs: compiled ones, or eager ones that no constant is fitted on.

    The new ones are those with which the planner was first compared when it was finished.
    """

    def keep(run: Run) -> bool:
        old = run.source.startswith(OLD)
        used = run.source in FITTED and run.given["world_size"] == 8 and not compiled
        return (
            run.source.startswith((*TITAN, "torchao pretraining"))
            and run.given["compiled"] == compiled
            and not used
            and old != new
        )

    return keep


def source(name: str | tuple[str, ...], kind: str = "", hidden: int | None = None) -> Callable[[Run], bool]:
    """Return what keeps a source's runs, of a kind, of a width; without a width, those with BLOOM's 14,400 left out."""

    def keep(run: Run) -> bool:
        width = run.plan.model.transformer.hidden if run.plan.model.transformer else 0
        right = width == hidden if hidden else (name != "BigScience" or width != 14400)
        return run.source.startswith(name) and kind in ("", run.kind) and right

    return keep


def nvidia(what: str) -> Callable[[Run], bool]:
    """Return what keeps the later runs of NVIDIA's software: with adapters ("LoRA"), experts ("EP"), or neither."""

    def keep(run: Run) -> bool:
        kind = next((word for word in ("LoRA", "EP") if word in run.sharding), "dense")
        return run.source.startswith("NVIDIA ") and kind == what

    return keep


def adapted(how: str) -> Callable[[Run], bool]:
    """Return what keeps the runs of Qwen's README that train adapters in this way."""
    return lambda run: run.source.startswith("Qwen") and run.sharding.split(",")[0] == how


ROWS: list[tuple[str, tuple[str, ...], Callable[[Run], bool]]] = [
    ("Playbook, data parallel and ZeRO-1", (RESERVED, SPEED), playbook("data parallel")),
    ("Playbook, pipeline parallel", (RESERVED,), playbook("PP")),
    ("— cannot have polled", (SPEED,), playbook("PP", slow=False)),
    ("— may have polled", (SPEED,), playbook("PP", slow=True)),
    ("Playbook, TP inside a node", (RESERVED, SPEED), playbook("TP", across=False)),
    ("— of these, the half that nothing is fitted on", (RESERVED, SPEED), playbook("TP", across=False, half=True)),
    ("Playbook, TP across nodes", (RESERVED, SPEED), playbook("TP", across=True)),
    ("— of these, the half that nothing is fitted on", (RESERVED, SPEED), playbook("TP", across=True, half=True)),
    ("— slow", (RESERVED,), lambda run: playbook("TP", across=True)(run) and late(run)),
    ("— not slow", (RESERVED,), lambda run: playbook("TP", across=True)(run) and not late(run)),
    ("Playbook, TP inside a node, and pipeline", (RESERVED,), playbook("TP and PP", across=False)),
    ("— cannot have polled", (RESERVED, SPEED), playbook("TP and PP", across=False, slow=False)),
    ("— may have polled", (RESERVED, SPEED), playbook("TP and PP", across=False, slow=True)),
    ("Playbook, TP across nodes, and pipeline", (RESERVED,), playbook("TP and PP", across=True)),
    ("— cannot have polled", (RESERVED, SPEED), playbook("TP and PP", across=True, slow=False)),
    ("— may have polled", (RESERVED, SPEED), playbook("TP and PP", across=True, slow=True)),
    ("— of both, the half that nothing is fitted on", (RESERVED,), playbook("TP and PP", half=True)),
    ("torchtitan, FSDP1 and FSDP2", (MEMORY,), source("torchtitan PR 165")),
    ("torchtitan, FSDP, TP 8, PP 8; up to 512 GPUs", (RESERVED,), source(TITAN)),
    ("torchtitan, Qwen3 32B, FSDP and TP 8", (RESERVED, SPEED), source("torchtitan PR 1690")),
    ("torchtitan of 2024, compiled", (SPEED,), titan(compiled=True)),
    ("torchtitan of 2024, eager, rows that nothing is fitted on", (SPEED,), titan(compiled=False)),
    ("torchtitan and torchao, compiled, new rows", (SPEED,), titan(compiled=True, new=True)),
    ("torchtitan and torchao, eager, new rows", (SPEED,), titan(compiled=False, new=True)),
    ("IBM fms-fsdp, 128 A100", (SPEED,), source("IBM")),
    ("llm-foundry, FSDP on 8 to 512 GPUs", (MFU,), source("llm-foundry")),
    ("InternLM 7B, 8 to 1,024 A100, data parallel", (SPEED,), source("InternLM", "data parallel")),
    ("InternLM 7B, TP 2", (SPEED,), source("InternLM", "TP")),
    ("BLOOM, TP and PP on up to 384 A100", (RESERVED, SPEED), source("BigScience", "TP and PP")),
    ("BLOOM, hidden 14,400", (RESERVED, SPEED), source("BigScience", hidden=14400)),
    ("Megatron-LM, TP 8 in a node", (SPEED,), source("Megatron-LM", "TP")),
    ("Megatron-LM, TP 8 and PP", (SPEED,), source("Megatron-LM", "TP and PP")),
    ("Llama 3 405B, TP 8, PP 16, 8,192 and 16,384 GPUs", (MFU,), source("Llama 3")),
    ("LitGPT, LoRA and QLoRA on one A100", (MEMORY,), source("LitGPT")),
    ("torchtune, LoRA and QLoRA", (RESERVED, SPEED), source("torchtune")),
    ("torchao, Llama 3 8B in bf16 and fp8: H100, MI300X, B200", (RESERVED, SPEED), source("torchao")),
    ("Megatron, mixture of experts on 8 to 256 GPUs", (SPEED,), source(("Megatron MoE", "Megatron-Bridge"))),
    ("KempnerForge, FSDP on 1 to 32 H200", (MEMORY, SPEED), source("KempnerForge", "data parallel")),
    ("KempnerForge, TP 2 and 4 in a node, and FSDP", (MEMORY, SPEED), source("KempnerForge", "TP")),
    ("KempnerForge, TP 4 and PP", (MEMORY, SPEED), source("KempnerForge", "TP and PP")),
    ("torchtitan, fp8 and CP to 262,144 tokens", (RESERVED, SPEED), source("torchtitan 20", "data parallel")),
    ("torchtitan, TP 8, in bf16 and fp8", (SPEED,), source("torchtitan 20", "TP")),
    ("torchtitan, 405B, TP 8, PP 8, CP to 8, fp8", (RESERVED, SPEED), source("torchtitan 20", "TP and PP")),
    ("NVIDIA, dense models, most in fp8", (SPEED,), nvidia("dense")),
    ("NVIDIA, LoRA", (SPEED,), nvidia("LoRA")),
    ("NVIDIA, experts", (SPEED,), nvidia("EP")),
    ("Qwen, LoRA on one A100, 256 to 8,192 tokens", (RESERVED, SPEED), adapted("LoRA")),
    ("Qwen, 4-bit LoRA, the same", (RESERVED,), adapted("QLoRA")),
]


def table(validation: Validation) -> Iterator[str]:
    """Yield the lines of the table of errors."""
    yield "| runs | value | number | median size of the error | median error | mean error | within 10 % |"
    yield "|---|---|---|---|---|---|---|"
    for label, values, keep in ROWS:
        for value in values:
            errors = [one.error for one in validation.compared if one.what == value and keep(one.run)]
            near = sum(abs(error) <= 0.1 for error in errors) / len(errors)
            mean = sum(errors) / len(errors)
            yield (
                f"| {label} | {VALUES[value]} | {len(errors)} | {median(map(abs, errors)):.1%} | {median(errors):+.1%} "
                f"| {mean:+.1%} | {near:.0%} |"
            )


def verdicts(validation: Validation) -> Iterator[str]:
    """Yield the lines of the table of verdicts."""
    names = ("fits", "may fit", "does not fit", "is refused")
    yield f"| the run | number | {' | '.join(f'“{name}”' for name in names)} |"
    yield "|---|---|---|---|---|---|"
    for ended, found in validation.verdicts.items():
        yield f"| {ended} | {found.total()} | {' | '.join(str(found[name]) for name in names)} |"


def left_out(validation: Validation) -> Iterator[str]:
    """Yield the lines of the table of rows that are not described, or whose speed is not compared."""
    yield "| source | rows | why |"
    yield "|---|---|---|"
    reasons = Counter((run.source, run.reason) for run in validation.runs if run.reason and run.ended != CRASHED)
    for (name, reason), number in sorted(reasons.items()):
        yield f"| {name} | {number} | {reason} |"


def later(validation: Validation) -> Iterator[str]:
    """Yield the lines of the table of speeds with the rates of 2025, of the newer sources."""
    yield "| runs | number | median error | with the rates of 2025 |"
    yield "|---|---|---|---|"
    for label, values, keep in ROWS:
        if SPEED in values and label.startswith(("torchtitan, ", "KempnerForge", "NVIDIA")):
            found = [one for one in validation.compared if one.what == SPEED and keep(one.run)]
            machines = [replace(MACHINES[one.run.hardware], **RATES_OF_2025) for one in found]
            speeds = [one.run.plan.tokens_per_second(machine) for one, machine in zip(found, machines, strict=True)]
            errors = [speed / one.published - 1 for one, speed in zip(found, speeds, strict=True)]
            yield f"| {label} | {len(found)} | {median(one.error for one in found):+.1%} | {median(errors):+.1%} |"


def page(validation: Validation) -> str:
    """Return the page with today's numbers."""
    text = PAGE.read_text("utf-8")
    blocks = iter(["\n".join(["", *lines(validation), "", ""]) for lines in (table, verdicts, left_out, later)])
    return BLOCK.sub(lambda match: match[1] + next(blocks) + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(page(validate()), "utf-8")
