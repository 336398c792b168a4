"""Faults in a DeepSpeed configuration: unknown names, and settings that contradict each other."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from .settings import GONE, SECTIONS, SETTINGS, UNEXPLAINED

Flat = Mapping[str, Any]
"""A configuration with dotted names, `zero_optimization.stage`. Entries outside known sections stay as they are."""

AUTO = "auto"
"""The value that Hugging Face's Trainer replaces. Without the Trainer, DeepSpeed uses the default, or ignores it."""

MAY_BE_NULL = ("zero_optimization.offload_optimizer", "zero_optimization.offload_param")
"""Sections that DeepSpeed takes without settings: nothing is offloaded."""


def faults(flat: Flat, world_size: int | None) -> Iterator[str]:
    """Yield a sentence for each fault: the name, what is wrong, and what to do."""
    for name, value in flat.items():
        if value is not None or name not in MAY_BE_NULL:
            yield from _name(name)
    yield from _batches(flat, world_size)
    if flat.get("bf16.enabled") is True and flat.get("fp16.enabled") is True:
        yield "bf16.enabled: fp16 is enabled as well, and a model has one of the two. Switch one off."
    yield from _stage(flat)
    params = flat.get("optimizer.params")
    if isinstance(params, Mapping) and "max_grad_norm" in params:
        yield "optimizer.params.max_grad_norm: DeepSpeed refuses it. Use gradient_clipping."


def _name(name: str) -> Iterator[str]:
    if name in GONE:
        yield f"{name}: {GONE[name]}"
    elif name in SECTIONS:
        yield f"{name}: a section is wanted, with settings in it. Write {{...}}."
    elif name not in SETTINGS and name not in UNEXPLAINED:
        section, _, last = name.rpartition(".")
        # Names are compared without their sections. If several are equal, the section of `name` or the shortest wins.
        known = sorted(SETTINGS.keys() | UNEXPLAINED | SECTIONS, key=lambda other: -other.count("."))
        known.sort(key=lambda other: other.rpartition(".")[0] == section)
        lasts = {other.rpartition(".")[2]: other for other in known}
        near = difflib.get_close_matches(last, lasts, n=1)
        advice = f"Did you mean {lasts[near[0]]}?" if near else "Take it out."
        yield f"{name}: DeepSpeed knows no such setting. {advice}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _batches(flat: Flat, world_size: int | None) -> Iterator[str]:
    names = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    whole, micro, steps = (flat.get(name) for name in names)
    if whole is None and micro is None:
        yield f"{names[0]}: neither it nor {names[1]} is given, and DeepSpeed refuses that. Give one of them."
    if whole is None or not all(_is_number(size) for size in (whole, micro or 1, steps or 1)):
        return  # some are missing or "auto"
    of_rank = (micro or 1) * (steps or 1)
    ranks = f"{world_size} ranks" if world_size else "any number of ranks"
    divides = whole % (of_rank * (world_size or 1)) == 0
    if not divides or (world_size and micro and steps and whole != of_rank * world_size):
        yield (
            f"{names[0]}: {whole} is not micro-batch ({micro or 'any'}) times accumulation steps ({steps or 'any'}) "
            f"times {ranks}. Leave one of the three out: it follows from the others."
        )


def _stage(flat: Flat) -> Iterator[str]:
    stage = flat.get("zero_optimization.stage", 0)
    if stage not in (0, 1, 2, 3):
        return
    for name in flat:
        _, _, inner = name.partition("zero_optimization.")
        if stage < 3 and inner.startswith(("stage3_", "offload_param.")) and name not in GONE:
            yield f"{name}: it belongs to stage 3, and this is stage {stage}: it has no effect. Take it out."
        if stage == 0 and inner.startswith("offload_optimizer."):
            yield f"{name}: at stage 0 no optimizer state is sharded, and none is offloaded. Choose stage 1, 2 or 3."
