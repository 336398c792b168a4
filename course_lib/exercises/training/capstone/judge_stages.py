"""Judge each stage on given hardware: it does not fit, it is slower, or it is chosen."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from .... import planner
from ...form.exercise import Case, Exercise

CLUSTERS = (
    ("llama-7b", "a100", 8, 1),
    ("gpt2-xl", "h100", 8, 8),  # stage 0 takes 1.0510 times as long as stage 3: between 1.05 and 1 / 0.95
    ("llama-13b", "a100", 8, 4),
    ("llama-70b", "h100-ethernet", 64, 1),
    ("gpt2-xl", "a100", 8, 16),
    ("llama-13b", "a100", 8, 1),
    ("llama-13b", "rtx-4090", 4, 1),
    ("llama-7b", "h100-ethernet", 16, 1),
    ("gpt2-xl", "rtx-4090", 4, 16),
)
"""Model, hardware, ranks, and rows a rank. In two of them nothing fits; each stage is chosen in one of the others."""


@cache
def plans_for(model: str, world_size: int, batch: int) -> list[planner.Plan]:
    """Return the plans of the four stages, with the attention and the buckets of `planner.choose`."""
    usual = {"attention": "flash", "implementation": "foreach", "bucket_bytes": 256 * 2**20}
    return [planner.plan(model=model, world_size=world_size, stage=stage, batch=batch, **usual) for stage in range(4)]


def draw(rng: random.Random, number: int) -> Case:
    """Return each cluster once, then one that stage 2 fills exactly, then one with room, but not for `plan.bytes`."""
    model, name, world_size, batch = CLUSTERS[number if number < len(CLUSTERS) else 2]
    plans, machine = plans_for(model, world_size, batch), planner.HARDWARE[name]
    about = f"{model} on {world_size} ranks of {machine.name}, {batch} rows a rank"
    if number >= len(CLUSTERS):
        machine = replace(machine, memory_bytes=plans[2].peak_bytes * (100 if number == len(CLUSTERS) else 115) // 100)
        about += f", each with {machine.memory_bytes:,} bytes"
    return Case(world_size=0, args=lambda rank: (list(plans), machine), about=about)


exercise = Exercise("capstone.judge_stages", title="Choose a stage, with reasons", draw=draw,
    case_count=len(CLUSTERS) + 2, task="""
    `plans` has one plan for each stage, the simplest stage first. Return one judgement for each plan:

    - "does not fit": at its peak, the plan holds more than a device of `machine` has.
    - "slower": it fits, and its step takes more than 1.05 times as long as the fastest step of the plans that fit.
    - "chosen": the first of the other plans.
    - "as fast": the rest.

    A plan has `peak_bytes` and `step_seconds(machine)`; a machine has `memory_bytes`.""", hints="""
    Answer two questions in turn: which plans are possible, and which of these is best?

    Leave out the plans that do not fit. Find the fastest of the rest; the other plans are compared with it.

    `plan.peak_bytes <= machine.memory_bytes`, then `plan.step_seconds(machine) > 1.05 * fastest`.

    ```python
    fitting = [plan for plan in plans if ...]
    fastest = min((... for plan in fitting), default=0)
    for plan in plans:
        if ...:  # does not fit
        elif ...:  # slower
        else:  # "chosen", unless an earlier plan is
    ```
    """, explanation="""
    First find what is possible, then what is best. The limit of 5 % is there because estimates of seconds are not more
    exact than this; among equally fast stages, the simplest is right. `planner.choose` does the same, for more
    settings.""")


@exercise
def judge_stages(plans: list[planner.Plan], machine: planner.Hardware) -> list[str]:
    """Return for each plan "does not fit", "slower", "as fast" or "chosen".

    A plan fits if its peak fits a device of `machine`. "slower" takes more than 1.05 times as long
    as the fastest that fits. Of the others, the first plan is "chosen".
    """
    fits = [plan.peak_bytes <= machine.memory_bytes for plan in plans]
    seconds = [plan.step_seconds(machine) for plan in plans]
    fastest = min((spent for spent, fit in zip(seconds, fits, strict=True) if fit), default=0.0)
    judgements: list[str] = []
    for spent, fit in zip(seconds, fits, strict=True):
        if not fit:
            judgements.append("does not fit")
        elif spent > 1.05 * fastest:
            judgements.append("slower")
        else:
            judgements.append("as fast" if "chosen" in judgements else "chosen")
    return judgements


CHOSEN = '"as fast" if "chosen" in judgements else "chosen"'

exercise.edit("not-to-the-last-byte", {"<=": "<"}, """
    You reject a plan that fills the memory exactly. It still fits.
    Next: a plan fits if `plan.peak_bytes <= machine.memory_bytes`.""")

exercise.edit("sum-of-largest", {"plan.peak_bytes": "sum(plan.bytes.values())"}, """
    You add up `plan.bytes`, in which each category has its largest size. The categories are not largest at the same
    moment. Next: use `plan.peak_bytes`.""")

exercise.edit("with-a-margin", {"machine.memory_bytes": "0.9 * machine.memory_bytes"}, """
    You leave a part of the memory free. A plan's peak contains everything that the rank holds.
    Next: a plan fits if `plan.peak_bytes <= machine.memory_bytes`.""")

exercise.edit("states-alone", {"plan.peak_bytes": 'sum(plan.moments["between steps"].values())'}, """
    You count only what a rank holds between steps. Activations, gradients and buffers need room as well.
    Next: use `plan.peak_bytes`.""")

exercise.edit("fastest-alone", {"1.05 * fastest": "fastest"}, """
    You judge plans as "slower" that take less than 5 % longer than the fastest. Estimates of seconds are not so exact.
    Next: compare with 1.05 times the fastest.""")

exercise.edit("divides-by-0-95", {"spent > 1.05 * fastest": "0.95 * spent > fastest"}, """
    A plan that takes 1.051 times as long as the fastest is not "slower" in your result. If you compare 0.95 times its
    seconds with the fastest, your limit is 1 / 0.95 = 1.053 times. Next: compare its seconds with `1.05 * fastest`.""")

exercise.edit("beside-all", {" if fit)": ")"}, """
    You also compare with plans that do not fit. They cannot run, so their speed does not count.
    Next: take the fastest of the plans that fit.""")

exercise.edit("highest-stage", {CHOSEN: '"as fast"', "return judgements": 'if "as fast" in judgements:\n'
    '    judgements[-1 - judgements[::-1].index("as fast")] = "chosen"\nreturn judgements'}, """
    You choose the last of the equally fast stages. A higher stage has more parts that can fail, and here gains no time.
    Next: choose the first of them.""")

exercise.edit("first-that-fits", {"plan.step_seconds(machine)": "1.0"}, """
    You choose the first plan that fits, whatever its step takes. Next: compare `step_seconds(machine)`.""")

exercise.edit("fastest-is-chosen", {CHOSEN: '"chosen" if spent == fastest and "chosen" not in judgements else '
    '"as fast"'}, """
    You choose the fastest plan, even where a simpler stage takes at most 5 % longer.
    Next: choose the first plan that is neither slower nor too large.""")


@exercise.variant
def two_passes(plans: list[planner.Plan], machine: planner.Hardware) -> list[str]:
    seconds = {i: plan.step_seconds(machine) for i, plan in enumerate(plans) if plan.peak_bytes <= machine.memory_bytes}
    words = ["does not fit"] * len(plans)
    for number, spent in seconds.items():
        words[number] = "as fast" if spent / min(seconds.values()) <= 1.05 else "slower"
    if "as fast" in words:
        words[words.index("as fast")] = "chosen"
    return words


exercise.variant_edit("by-timelines", {"plan.peak_bytes <= machine.memory_bytes":
    "machine.memory_bytes - plan.peak_bytes >= 0", "plan.step_seconds(machine)": "plan.timeline(machine).seconds"})
