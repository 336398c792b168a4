"""Write the numbers of docs/validation.md: `python -m docs.validation`. A test compares the page with this."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from course_lib.planner import Run, Validation, validate

PAGE = Path(__file__).parent / "validation.md"
BLOCK = re.compile(r"(<!-- written by docs/validation.py -->\n\n).*?(\n<!-- end -->)", re.DOTALL)

MEMORY, RESERVED, SPEED, MFU = "active", "reserved", "tokens/s/GPU", "MFU"
VALUES = {MEMORY: "peak memory", RESERVED: "reserved memory", SPEED: "tokens a second a GPU", MFU: "FLOPs utilization"}
FITTED = ("torchtitan PR 165 FSDP2", "torchtitan December 2024")
"""Sources of the three eager rows, on 8 GPUs, that `TRAFFIC["eager"]` is fitted on."""


def cut(run: Run, name: str) -> int:
    """Return `tensor_parallel` or `pipeline_parallel` of a run."""
    return int(run.given.get(name, 1))


def playbook(kind: str, across: bool | None = None) -> Callable[[Run], bool]:
    """Return what keeps the playbook's runs of a kind, with tensor parallelism across nodes of 8, within, or both."""

    def keep(run: Run) -> bool:
        place = across is None or (cut(run, "tensor_parallel") > 8) == across
        return run.source == "Ultra-Scale Playbook" and run.kind == kind and place

    return keep


def titan(compiled: bool) -> Callable[[Run], bool]:
    """Return what keeps torchtitan's compiled runs, or its eager ones without those that a constant is fitted on."""

    def keep(run: Run) -> bool:
        used = run.source in FITTED and run.given["world_size"] == 8 and not compiled
        return "torchtitan" in run.source and run.given["compiled"] == compiled and not used

    return keep


def source(name: str) -> Callable[[Run], bool]:
    """Return what keeps a source's runs."""
    return lambda run: name in run.source


ROWS: list[tuple[str, tuple[str, ...], Callable[[Run], bool]]] = [
    ("Playbook, data parallel and ZeRO-1", (MEMORY, SPEED), playbook("data parallel")),
    ("Playbook, pipeline parallel", (MEMORY, SPEED), playbook("PP")),
    ("Playbook, tensor parallel in a node", (MEMORY, SPEED), playbook("TP", across=False)),
    ("Playbook, tensor parallel across nodes", (MEMORY, SPEED), playbook("TP", across=True)),
    ("Playbook, tensor in a node, and pipeline", (MEMORY, SPEED), playbook("TP and PP", across=False)),
    ("Playbook, tensor across nodes, and pipeline", (MEMORY, SPEED), playbook("TP and PP", across=True)),
    ("torchtitan, FSDP1 and FSDP2", (MEMORY,), source("torchtitan")),
    ("torchtitan, FSDP, TP 8, PP 8; up to 512 GPUs", (RESERVED,), source("torchtitan")),
    ("torchtitan, compiled", (SPEED,), titan(compiled=True)),
    ("torchtitan, eager, rows that nothing is fitted on", (SPEED,), titan(compiled=False)),
    ("llm-foundry, FSDP on 8 to 512 GPUs", (MFU,), source("llm-foundry")),
    ("Llama 3 405B, TP 8, PP 16, 8,192 and 16,384 GPUs", (MFU,), source("Llama 3")),
    ("LitGPT, LoRA and QLoRA on one A100", (RESERVED,), source("LitGPT")),
    ("torchtune, LoRA and QLoRA", (RESERVED, SPEED), source("torchtune")),
    ("torchao, Llama 3 8B in bf16 and fp8: H100, MI300X, B200", (RESERVED, SPEED), source("torchao")),
    ("Megatron, mixture of experts on 8 to 256 GPUs", (SPEED,), source("Megatron")),
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
    yield "| runs | number | “fits” | “may fit” | “does not fit” |"
    yield "|---|---|---|---|---|"
    planned = [run for run in validation.runs if run.given]
    for label, keep in (
        ("fitted", lambda run: run.fitted),
        ("playbook: crashed or ran out of memory", lambda run: not run.fitted),
    ):
        found = Counter(run.fits for run in planned if keep(run))
        yield f"| {label} | {found.total()} | {found['fits']} | {found['may fit']} | {found['does not fit']} |"


def page(validation: Validation) -> str:
    """Return the page with today's numbers."""
    text = PAGE.read_text("utf-8")
    blocks = iter(["\n".join(table(validation)) + "\n", "\n".join(verdicts(validation)) + "\n"])
    return BLOCK.sub(lambda match: match[1] + next(blocks) + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(page(validate()), "utf-8")
