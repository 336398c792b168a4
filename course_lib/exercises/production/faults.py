"""What is wrong with a DeepSpeed configuration."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .configurations import Config


def faults(config: dict[str, Any], world_size: int) -> list[str]:
    """Return the settings of a DeepSpeed configuration that cannot hold or have no effect, sorted."""
    found, zero = [], config.get("zero_optimization", {})
    stage = zero.get("stage", 0)
    if "train_batch_size" in config:
        at_once = config["train_micro_batch_size_per_gpu"] * world_size
        micro_batches, left_over = divmod(config["train_batch_size"], at_once)
        if left_over or micro_batches != config.get("gradient_accumulation_steps", micro_batches):
            found.append("train_batch_size")
    if all(config.get(key, {}).get("enabled", False) for key in ("bf16", "fp16")):
        found.append("bf16")
    if stage < 3:
        found += [key for key in zero if key == "offload_param" or key.startswith("stage3_")]
    if stage == 0 and "offload_optimizer" in zero:
        found.append("offload_optimizer")
    return sorted(found)


def checked(
    *,
    stage_by_default: int = 0,
    ranks: bool = True,
    accumulation: bool = True,
    steps_by_default: int | None = None,
    enabled: bool = True,
    batch: bool = True,
    stage_3_from: int = 3,
    stage_3_settings: bool = True,
    offload_param: bool = True,
    offload_optimizer_below: int = 1,
    in_order: bool = True,
) -> Solution:
    """The check, with parts of it otherwise."""

    def found(config: Config, world_size: int) -> Iterator[str]:
        zero = config.get("zero_optimization", {})
        stage = zero.get("stage", stage_by_default)
        if batch and "train_batch_size" in config:
            at_once = config["train_micro_batch_size_per_gpu"] * (world_size if ranks else 1)
            micro_batches, left_over = divmod(config["train_batch_size"], at_once)
            steps = config.get("gradient_accumulation_steps", steps_by_default or micro_batches) if accumulation else 1
            if left_over or micro_batches != steps:
                yield "train_batch_size"
        if all((config.get(key, {}).get("enabled") if enabled else key in config) for key in ("bf16", "fp16")):
            yield "bf16"
        if stage < stage_3_from:
            yield from (key for key in zero if offload_param and key == "offload_param")
            yield from (key for key in zero if stage_3_settings and key.startswith("stage3_"))
        if stage < offload_optimizer_below and "offload_optimizer" in zero:
            yield "offload_optimizer"

    def in_some_order(config: Config, world_size: int) -> list[str]:
        listed = list(found(config, world_size))
        return sorted(listed) if in_order else listed

    return in_some_order


def first_alone(config: Config, world_size: int) -> list[str]:
    return faults(config, world_size)[:1]


def how_many(config: Config, world_size: int) -> int:
    return len(faults(config, world_size))


def both_precisions(config: Config, world_size: int) -> list[str]:
    found = faults(config, world_size)
    return sorted([*found, "fp16"]) if "bf16" in found else found


def fp16_named(config: Config, world_size: int) -> list[str]:
    return sorted("fp16" if fault == "bf16" else fault for fault in faults(config, world_size))


def no_zero_section(config: Config, world_size: int) -> list[str]:
    assert config["zero_optimization"]
    return faults(config, world_size)


def as_a_set(config: Config, world_size: int) -> list[str]:
    zero = config.get("zero_optimization") or {"stage": 0}
    stage = zero.get("stage", 0)
    found = {key for key in zero if (key[:7] == "stage3_" or key == "offload_param") and stage != 3}
    found |= {"offload_optimizer"} & zero.keys() if not stage else set()
    found |= {"bf16"} if [config[k].get("enabled") for k in ("bf16", "fp16") if k in config] == [True, True] else set()
    if "train_batch_size" in config:
        at_once = world_size * config["train_micro_batch_size_per_gpu"]
        steps = config.get("gradient_accumulation_steps") or config["train_batch_size"] // at_once
        agrees = config["train_batch_size"] == steps * at_once
        found |= set() if agrees else {"train_batch_size"}
    return sorted(found)


def draw(rng: random.Random, number: int) -> Case:
    """The first draws show each fault, and each thing that looks like one."""
    world_size, micro, steps = rng.randint(2, 8), rng.randint(2, 4), rng.randint(2, 4)
    right = micro * steps * world_size
    config: Config = {"train_micro_batch_size_per_gpu": micro}
    if number % 3:
        config["gradient_accumulation_steps"] = steps
        config["train_batch_size"] = rng.choice([right, right + world_size]) if number > 3 else right
    if number in (3, 4, 6):  # 3 and 6 without the steps, which follow from the others if anything does
        config["train_batch_size"] = {3: right, 4: micro * steps, 6: right + 1}[number]
    cpu = {"device": "cpu"}
    settings: Config = {"stage3_prefetch_bucket_size": 1000, "offload_param": cpu, "offload_optimizer": cpu}
    zero: Config = {key: settings[key] for key in rng.sample(sorted(settings), rng.randint(1, 3))}
    zero["stage"] = rng.randint(0, 3)
    if number < 6:
        zero = [settings | {"stage": 2}, settings | {"stage": 3}, settings | {"stage": 1}, dict(settings), {}, zero][
            number
        ]
    if number != 4:
        config["zero_optimization"] = zero
    on, off = {"enabled": True}, {"enabled": False}
    precisions: list[Config] = [{"bf16": on, "fp16": off}, {"bf16": on, "fp16": on}, {"fp16": on}, {}]
    config |= precisions[number % 4]
    return Case(world_size=0, args=lambda rank: (config, world_size), about=f"{world_size} ranks, {config}")


FAULTS = Exercise(
    name="production.faults",
    title="Faults of a configuration",
    task="Return the settings, by name, that cannot hold or have no effect, sorted. `train_batch_size`, where it is "
    "given: unless it is micro-batch times accumulation steps times ranks; where these steps are not given, unless "
    "there is a whole number of them. `bf16`: where both "
    "`bf16` and `fp16` are enabled. In `zero_optimization`: below stage 3 `offload_param` and every name that begins "
    "with `stage3_`; at stage 0, which is the default, `offload_optimizer` as well.",
    stub=stubs.faults,
    reference=faults,
    draw=draw,
    case_count=14,
    variants={"as-a-set": as_a_set, "in-parts": checked()},
    mistakes=[
        Mistake(
            id="ranks-forgotten",
            solution=checked(ranks=False),
            told="`train_batch_size` is that of all ranks together, and you compare it with one rank's.",
            action="Multiply by the number of ranks.",
        ),
        Mistake(
            id="accumulation-forgotten",
            solution=checked(accumulation=False),
            told="A step has several micro-batches where gradients are accumulated.",
            action="Multiply by `gradient_accumulation_steps`, where it is given.",
        ),
        Mistake(
            id="one-step-by-default",
            solution=checked(steps_by_default=1),
            told="Where accumulation steps are not given, you take 1. DeepSpeed works them out from the other two.",
            action="Divide the batch by micro-batch and ranks, and look at what is left over.",
        ),
        Mistake(
            id="batch-unchecked",
            solution=checked(batch=False),
            told="The sizes of batches are not compared.",
            action="Compare `train_batch_size` with the product of the other two and the ranks.",
        ),
        Mistake(
            id="enabled-unread",
            solution=checked(enabled=False),
            told="Both sections are there, but one is switched off: that is no fault.",
            action='Look at `"enabled"` in each.',
        ),
        Mistake(
            id="both-named",
            solution=both_precisions,
            told="You name both precisions. Asked for is the one name, `bf16`.",
            action="Append `bf16` alone.",
        ),
        Mistake(
            id="fp16-named",
            solution=fp16_named,
            told="You name `fp16`. Asked for is `bf16`, where both are enabled.",
            action="Append `bf16`.",
        ),
        Mistake(
            id="below-stage-2",
            solution=checked(stage_3_from=2),
            told="At stage 2 parameters are not sharded either, so what belongs to stage 3 has no effect there.",
            action="Compare with 3: `stage < 3`.",
        ),
        Mistake(
            id="always-of-stage-3",
            solution=checked(stage_3_from=4),
            told="At stage 3 these settings are where they belong.",
            action="Look at the stage before you name them.",
        ),
        Mistake(
            id="stage-3-settings-overlooked",
            solution=checked(stage_3_settings=False),
            told="Names that begin with `stage3_` are overlooked.",
            action='Go through the names of the section: `name.startswith("stage3_")`.',
        ),
        Mistake(
            id="offload-param-overlooked",
            solution=checked(offload_param=False),
            told="`offload_param` belongs to stage 3, though its name does not say so.",
            action="Name it below stage 3.",
        ),
        Mistake(
            id="optimizer-below-stage-3",
            solution=checked(offload_optimizer_below=3),
            told="The optimizer's state can be offloaded from stage 1 on: there it is sharded.",
            action="Name `offload_optimizer` at stage 0 alone.",
        ),
        Mistake(
            id="optimizer-unchecked",
            solution=checked(offload_optimizer_below=0),
            told="At stage 0 there is no sharded optimizer to offload.",
            action="Name `offload_optimizer` there.",
        ),
        Mistake(
            id="stage-3-by-default",
            solution=checked(stage_by_default=3),
            told="Where no stage is given, you take stage 3. DeepSpeed takes stage 0: nothing is sharded.",
            action='Use `zero.get("stage", 0)`.',
        ),
        Mistake(
            id="no-section",
            solution=no_zero_section,
            told="A configuration need not have a section `zero_optimization`.",
            action='Use `config.get("zero_optimization", {})`.',
        ),
        Mistake(
            id="first-alone",
            solution=first_alone,
            told="You stop at the first fault. Who mends it wants to know of the others.",
            action="Collect all of them, and return the list at the end.",
        ),
        Mistake(
            id="how-many",
            solution=how_many,
            told="You return how many there are.",
            action="Return their names.",
        ),
        Mistake(
            id="not-sorted",
            solution=checked(in_order=False),
            told="The names are right, and not sorted.",
            action="Return `sorted(...)`.",
        ),
    ],
    hints=[
        "Which settings have to agree with each other? Which depend on the stage?",
        "Each fault is a condition on its own. Collect the names of those that hold. What is not given has a default: "
        "stage 0, nothing enabled. Accumulation steps that are not given follow from batch, micro-batch and ranks.",
        "`config.get(key, default)`, `name.startswith(...)`, `sorted(...)`.",
        '```python\nfound, zero = [], config.get("zero_optimization", {})\nif ...:\n'
        '    found.append("train_batch_size")\n...\nif zero.get("stage", 0) < 3:\n    found += [key for key in zero '
        "if ...]\n...\n```",
    ],
    explanation="DeepSpeed refuses batches that do not agree. Most of the rest it takes in silence: `offload_param` at "
    "stage 2 offloads nothing, and a misspelt name at the top is never read. So read a configuration back before you "
    "trust it: `production.explain` does for all the settings that it knows.",
)
