"""The faults of a DeepSpeed configuration."""

from __future__ import annotations

import random
from typing import Any

from ...form.exercise import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    """Draw a configuration. The first ones show each fault, and each setting that only looks like one."""
    world_size, micro, steps = rng.randint(2, 8), rng.randint(2, 4), rng.randint(2, 4)
    right = micro * steps * world_size
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": micro}
    if number % 3:
        config["gradient_accumulation_steps"] = steps
        config["train_batch_size"] = rng.choice([right, right + world_size]) if number > 3 else right
    if number in (3, 4, 6):  # 3 and 6 without the steps, which follow from the others if they follow at all
        config["train_batch_size"] = {3: right, 4: micro * steps, 6: right + 1}[number]
    cpu = {"device": "cpu"}
    settings: dict[str, Any] = {"stage3_prefetch_bucket_size": 1000, "offload_param": cpu, "offload_optimizer": cpu}
    zero = {key: settings[key] for key in rng.sample(sorted(settings), rng.randint(1, 3))}
    zero["stage"] = rng.randint(0, 3)
    if number < 5:
        zero = [settings | {"stage": 2}, settings | {"stage": 3}, settings | {"stage": 1}, settings, {}][number]
    if number != 4:
        config["zero_optimization"] = zero
    on, off = {"enabled": True}, {"enabled": False}
    config |= ({"bf16": on, "fp16": off}, {"bf16": on, "fp16": on}, {"fp16": on}, {})[number % 4]
    return Case(world_size=0, args=lambda rank: (config, world_size), about=f"{world_size} ranks, {config}")


exercise = Exercise("production.faults", title="Faults of a configuration", draw=draw, case_count=14, task="""
    Return the names of the settings that cannot hold or have no effect, sorted:

    - `train_batch_size`, if it is given and is not micro-batch times accumulation steps times ranks. If the steps are
      not given, it is a fault if no whole number of steps fits.
    - `bf16`, if both `bf16` and `fp16` are enabled.
    - In `zero_optimization`, below stage 3: `offload_param`, and every name that begins with `stage3_`.
    - In `zero_optimization`, at stage 0: `offload_optimizer` as well. Stage 0 is the default.""", hints="""
    Which settings have to agree with each other? Which ones depend on the stage?

    Each fault is a separate condition. Collect the names of the settings with a fault. A missing setting has a default:
    stage 0, nothing enabled. Missing accumulation steps follow from batch, micro-batch and ranks.

    `config.get(key, default)`, `name.startswith(...)`, `sorted(...)`.

    ```python
    found, zero = [], config.get("zero_optimization", {})
    if ...:
        found.append("train_batch_size")
    ...
    if zero.get("stage", 0) < 3:
        found += [key for key in zero if ...]
    ...
    ```
    """, explanation="""
    DeepSpeed refuses batches that do not agree. It accepts most other faults without a message: `offload_param` at
    stage 2 offloads nothing, and a misspelt name at the top is never read. So check how a configuration is understood
    before you trust it. `production.explain` does this for all settings that it knows.""")


@exercise
def faults(config: dict[str, Any], world_size: int) -> list[str]:
    """Return the settings of a DeepSpeed configuration that cannot hold or have no effect, sorted.

    "train_batch_size" that is not micro-batch times accumulation times ranks; "bf16" beside "fp16";
    "offload_param" or any "stage3_..." below stage 3; "offload_optimizer" at stage 0.
    """
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


exercise.edit("ranks-forgotten", {" * world_size": ""}, """
    You compare `train_batch_size` with the batch of one rank. It is the batch of all ranks together.
    Next: multiply by the number of ranks.""")

exercise.edit("accumulation-forgotten", {'config.get("gradient_accumulation_steps", micro_batches)': "1"}, """
    You do not count the accumulation steps. With accumulation, a step has several micro-batches.
    Next: multiply by `gradient_accumulation_steps` if it is given.""")

exercise.edit("one-step-by-default", {"steps\", micro_batches)": "steps\", 1)"}, """
    If the accumulation steps are not given, you use 1. DeepSpeed computes them from the other two.
    Next: divide the batch by micro-batch and ranks, and check the remainder.""")

exercise.edit("enabled-unread", {'config.get(key, {}).get("enabled", False)': "key in config"}, """
    You report `bf16` whenever both sections are present. If one of them is switched off, there is no fault.
    Next: check `"enabled"` in each.""")

exercise.edit("below-stage-2", {"stage < 3": "stage < 2"}, """
    You accept at stage 2 the settings of stage 3. Stage 2 does not shard parameters, so they have no effect there.
    Next: compare with 3: `stage < 3`.""")

exercise.edit("offload-param-overlooked", {'key == "offload_param" or ': ""}, """
    You overlook `offload_param`. It belongs to stage 3, though its name does not say so.
    Next: report it below stage 3.""")

exercise.edit("optimizer-below-stage-3", {"stage == 0": "stage < 3"}, """
    You report `offload_optimizer` at stages 1 and 2 too. From stage 1 on the optimizer's state is sharded, and can be
    offloaded. Next: report `offload_optimizer` only at stage 0.""")

exercise.edit("stage-3-by-default", {'"stage", 0': '"stage", 3'}, """
    If no stage is given, you use stage 3. DeepSpeed uses stage 0: nothing is sharded.
    Next: use `zero.get("stage", 0)`.""")

exercise.variant_edit("in-place", {"return sorted(found)": "found.sort()\nreturn found"})

exercise.variant_edit("in-other-words", {"stage < 3": "stage != 3", 'key.startswith("stage3_")': 'key[:7] == "stage3_"',
    "stage == 0": "not stage"})
