"""From a DeepSpeed configuration to FSDP2's arguments."""

from __future__ import annotations

import random
from typing import Any

from ...form.exercise import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    """Draw a configuration. Each of the first ones has something that a mistake would overlook."""
    world_size, stage = rng.randint(2, 8), 3 if number == 0 else (2, 3)[number % 2]
    zero: dict[str, Any] = {"stage": stage}
    config: dict[str, Any] = {"zero_optimization": zero} | _batches(rng, world_size)
    devices: list[dict[str, Any]] = [{}, {"device": "none"}, {"device": "cpu"}, {"device": "cpu", "pin_memory": True}]
    for key in ("offload_optimizer", *(("offload_param",) if stage == 3 else ())):
        if rng.random() < 0.7:
            zero[key] = rng.choice(devices)
    precision = rng.choice([{}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}, {"bf16": {"enabled": False}}])
    clipping: dict[str, Any] = rng.choice([{}, {"gradient_clipping": 0.0}, {"gradient_clipping": 0.5}])
    if number == 1:
        precision, clipping = {"bf16": {"enabled": False}, "fp16": {"enabled": True}}, {}
        zero |= {"stage": 3, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "cpu"}}
    elif number == 2:
        precision, clipping = {"bf16": {}}, {"gradient_clipping": 0.0}
        zero |= {"offload_optimizer": {"device": "cpu"}}
    elif number == 3:
        config = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}}
        config |= {"train_batch_size": 6 * world_size, "train_micro_batch_size_per_gpu": 2}
        precision = {"bf16": {"enabled": True}}
    config |= precision | clipping
    return Case(world_size=0, args=lambda rank: (config, world_size), about=f"{world_size} ranks, {config}")


def _batches(rng: random.Random, world_size: int) -> dict[str, Any]:
    """Return two of the three sizes of batches or all of them, which agree, or sometimes only one."""
    micro, steps = rng.randint(2, 5), rng.randint(2, 4)
    sizes = {
        "train_batch_size": micro * steps * world_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
    }
    batch, micro_batch, accumulation = sizes
    kept = rng.choice([(batch, micro_batch), (micro_batch, accumulation), tuple(sizes), (micro_batch,)])
    return {key: sizes[key] for key in kept}


exercise = Exercise("production.fsdp2_settings", title="From DeepSpeed to FSDP2", draw=draw, case_count=12, task="""
    Translate a DeepSpeed configuration of stage 2 or 3. A missing setting has the default of DeepSpeed 0.19.8:
    gradients are clipped to 1.0; nothing is `enabled`; a `device` to offload to is `"none"`. A `gradient_clipping` of 0
    means that gradients are not clipped. FSDP2 offloads all or nothing, so offload if the parameters or the optimizer
    are offloaded to the CPU. At stage 2, parameters stay whole from forward to backward.
    `"gradient_accumulation_steps"` may be missing. With a `train_batch_size`, compute the steps: the batch is
    micro-batch times steps times ranks. Without one, there is 1 step.""", hints="""
    For each of the five results: which setting contains it, and which value has a missing setting?

    A missing setting has a default, and a default is not always nothing. Three of DeepSpeed's defaults matter here.

    `config.get(key, default)`, also twice in a row: `config.get("bf16", {}).get("enabled", False)`.

    ```python
    zero = config["zero_optimization"]
    return {
        "reshard_after_forward": ...,
        "max_norm": config.get("gradient_clipping", ...) or None,
        ...
    }
    ```
    """, explanation="""
    The settings that a configuration leaves out matter as much as those that it contains. Clipping is the default that
    people overlook: if you move a training from DeepSpeed to FSDP2 without it, the losses differ from the first large
    gradient on. (Before release 0.19.3, DeepSpeed did not clip by default.) Some settings have no exact translation.
    FSDP2 offloads parameters, gradients and optimizer state together. And its equivalent of stage 2 holds less between
    steps than DeepSpeed's stage 2, because its parameters are whole only between forward and backward.""")


@exercise
def fsdp2_settings(config: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Return what a DeepSpeed configuration of stage 2 or 3 comes to with FSDP2.

    "reshard_after_forward" and "offload": bools; "param_dtype": "bfloat16", "float16" or None;
    "max_norm": of all gradients, a float, or None where they are not clipped;
    "micro_batches": how many there are in a step.
    """
    zero = config["zero_optimization"]
    dtypes = {"bf16": "bfloat16", "fp16": "float16"}
    enabled = [dtype for key, dtype in dtypes.items() if config.get(key, {}).get("enabled", False)]
    offloads = [zero.get(key, {}).get("device", "none") for key in ("offload_param", "offload_optimizer")]
    micro_batches = config.get("gradient_accumulation_steps", 1)
    if "gradient_accumulation_steps" not in config and "train_batch_size" in config:
        micro_batches = config["train_batch_size"] // config["train_micro_batch_size_per_gpu"] // world_size
    return {
        "reshard_after_forward": zero["stage"] == 3,
        "param_dtype": enabled[0] if enabled else None,
        "offload": "cpu" in offloads,
        "max_norm": config.get("gradient_clipping", 1.0) or None,
        "micro_batches": micro_batches,
    }


exercise.edit("no-clipping-by-default", {", 1.0) or": ") or"}, """
    If the configuration has no `gradient_clipping`, you do not clip. DeepSpeed 0.19.8 then clips to a norm of 1.0.
    Next: pass this default to `get`: `config.get("gradient_clipping", 1.0)`.""")

exercise.edit("clips-to-zero", {" or None": ""}, """
    You return a `max_norm` of 0, which would make all gradients zero. A `gradient_clipping` of 0 means no clipping.
    Next: return None for 0.""")

exercise.edit("always-resharded", {'zero["stage"] == 3': "True"}, """
    You reshard after forward at stage 2 too. At stage 2, parameters stay whole until backward is done.
    Next: make it depend on the stage.""")

exercise.edit("whatever-is-there", {'config.get(key, {}).get("enabled", False)': "key in config"}, """
    You use a precision that is switched off. A section can be present with `"enabled"` False or missing.
    Next: check `"enabled"` too.""")

exercise.edit("any-offload", {'"cpu" in offloads': '"offload_param" in zero or "offload_optimizer" in zero'}, """
    You offload whenever there is a section for it. A section can be present and offload nothing: with `"device"`
    `"none"`, or without a device. Next: compare the device with `"cpu"`.""")

exercise.edit("optimizer-overlooked", {'in ("offload_param", "offload_optimizer")': 'in ["offload_param"]'}, """
    You read only the section for parameters. A configuration can offload only the optimizer.
    Next: read both sections.""")

exercise.edit("one-micro-batch", {' and "train_batch_size" in config': " and False"}, """
    If the accumulation steps are missing, you use 1. They follow from the two sizes of batches.
    Next: divide `train_batch_size` by the micro-batch and by the number of ranks.""")

exercise.edit("ranks-forgotten", {" // world_size": ""}, """
    You divide the whole batch by the micro-batch. All ranks share the whole batch.
    Next: divide by the number of ranks as well.""")

exercise.variant_edit("with-try", {
    """micro_batches = config.get("gradient_accumulation_steps", 1)
    if "gradient_accumulation_steps" not in config and "train_batch_size" in config:
    micro_batches = config["train_batch_size"] // config["train_micro_batch_size_per_gpu"] // world_size""":
    """try:
    micro_batches = config["gradient_accumulation_steps"]
except KeyError:
    at_once = config["train_micro_batch_size_per_gpu"] * world_size
    micro_batches = config.get("train_batch_size", at_once) // at_once"""})

exercise.variant_edit("in-other-words", {'zero["stage"] == 3': 'zero["stage"] > 2',
    '"cpu" in offloads': 'any(device == "cpu" for device in offloads)'})
