"""From a DeepSpeed configuration to FSDP2's arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .configurations import Config, draw_batches, offload

Settings = dict[str, Any]


def fsdp2_settings(config: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Return what a DeepSpeed configuration of stage 2 or 3 comes to with FSDP2."""
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


def settings_with(key: str, value: Callable[[Config, int], Any]) -> Solution:
    """The right settings, but for one of them."""

    def settings(config: Config, world_size: int) -> Settings:
        return fsdp2_settings(config, world_size) | {key: value(config, world_size)}

    return settings


def any_offload(config: Config, world_size: int) -> bool:
    zero = config["zero_optimization"]
    return "offload_param" in zero or "offload_optimizer" in zero


def one_offload(key: str) -> Callable[[Config, int], bool]:
    return lambda config, world_size: bool(config["zero_optimization"].get(key, {}).get("device") == "cpu")


def whatever_is_there(config: Config, world_size: int) -> str | None:
    return "bfloat16" if "bf16" in config else "float16" if "fp16" in config else None


def bf16_alone(config: Config, world_size: int) -> str | None:
    return "bfloat16" if config.get("bf16", {}).get("enabled") else None


def ranks_forgotten(config: Config, world_size: int) -> int:
    if "gradient_accumulation_steps" in config or "train_batch_size" not in config:
        return int(config.get("gradient_accumulation_steps", 1))
    return int(config["train_batch_size"] // config["train_micro_batch_size_per_gpu"])


def short_names(config: Config, world_size: int) -> Settings:
    right = fsdp2_settings(config, world_size)
    names = {"bfloat16": "bf16", "float16": "fp16"}
    return right | {"param_dtype": names.get(right["param_dtype"])}


def top_level_stage(config: Config, world_size: int) -> bool:
    return bool(config.get("stage") == 3)


def settings_in_steps(config: Config, world_size: int) -> Settings:
    zero, settings = config["zero_optimization"], {}
    settings["reshard_after_forward"] = zero["stage"] > 2
    settings["param_dtype"] = None
    if "bf16" in config and config["bf16"].get("enabled"):
        settings["param_dtype"] = "bfloat16"
    elif "fp16" in config and config["fp16"].get("enabled"):
        settings["param_dtype"] = "float16"
    settings["offload"] = any(
        "device" in zero.get(key, {}) and zero[key]["device"] != "none"
        for key in ("offload_param", "offload_optimizer")
    )
    clipping = config.get("gradient_clipping", 1.0)
    settings["max_norm"] = clipping if clipping > 0 else None
    micro = config["train_micro_batch_size_per_gpu"]
    settings["micro_batches"] = config.get("train_batch_size", 0) // (micro * world_size) or config.get(
        "gradient_accumulation_steps", 1
    )
    return settings


def with_try(config: Config, world_size: int) -> Settings:
    def enabled(key: str) -> bool:
        return bool(config.get(key, {"enabled": False}).get("enabled", False))

    def device(key: str) -> Any:
        return config["zero_optimization"].get(key, {"device": "none"}).get("device")

    try:
        micro_batches = config["gradient_accumulation_steps"]
    except KeyError:
        micro = config["train_micro_batch_size_per_gpu"]
        micro_batches = config.get("train_batch_size", micro * world_size) // (micro * world_size)
    max_norm = config.get("gradient_clipping", 1.0)
    return {
        "reshard_after_forward": config["zero_optimization"]["stage"] != 2,
        "param_dtype": ("bfloat16" if enabled("bf16") else "float16" if enabled("fp16") else None),
        "offload": "cpu" in {device("offload_param"), device("offload_optimizer")},
        "max_norm": None if max_norm == 0 else max_norm,
        "micro_batches": micro_batches,
    }


def draw(rng: random.Random, number: int) -> Case:
    """Each of the first draws has something that a mistake would overlook."""
    world_size, stage = rng.randint(2, 8), 3 if number == 0 else (2, 3)[number % 2]
    zero: Config = {"stage": stage}
    config: Config = {"zero_optimization": zero} | draw_batches(rng, world_size)
    for key in ("offload_optimizer", *(("offload_param",) if stage == 3 else ())):
        if rng.random() < 0.7:
            zero[key] = offload(rng)
    precision = rng.choice([{}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}, {"bf16": {"enabled": False}}])
    clipping: Config = rng.choice([{}, {"gradient_clipping": 0.0}, {"gradient_clipping": 0.5}])
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


FSDP2_SETTINGS = Exercise(
    name="production.fsdp2_settings",
    title="From DeepSpeed to FSDP2",
    task="Translate a DeepSpeed configuration of stage 2 or 3. What it leaves out has the default of "
    "DeepSpeed 0.19.8: gradients are clipped to 1.0, and `gradient_clipping` 0 means that they are not; nothing is "
    '`enabled`; a `device` to offload to is `"none"`. FSDP2 offloads all or nothing: so do it where either of the two '
    'is offloaded to the CPU. Stage 2 has parameters whole from forward to backward. `"gradient_accumulation_steps"` '
    "may be missing: with a `train_batch_size`, that is the micro-batch times the steps times the ranks; with none, it "
    "is 1.",
    stub=stubs.fsdp2_settings,
    reference=fsdp2_settings,
    draw=draw,
    case_count=12,
    variants={"in-steps": settings_in_steps, "with-try": with_try},
    mistakes=[
        Mistake(
            id="no-clipping-by-default",
            solution=settings_with("max_norm", lambda config, ranks: config.get("gradient_clipping") or None),
            told="Where the configuration says nothing of clipping, you do not clip. DeepSpeed 0.19.8 clips to a norm "
            "of 1.0.",
            action='Give `get` the default: `config.get("gradient_clipping", 1.0)`.',
        ),
        Mistake(
            id="clips-to-zero",
            solution=settings_with("max_norm", lambda config, ranks: config.get("gradient_clipping", 1.0)),
            told="`gradient_clipping` 0 means no clipping. A `max_norm` of 0 would make all gradients zero.",
            action="Turn 0 into None.",
        ),
        Mistake(
            id="always-clips",
            solution=settings_with("max_norm", lambda config, ranks: config.get("gradient_clipping") or 1.0),
            told="0 counts as missing in `x or 1.0`, so you clip to 1.0 where clipping was switched off.",
            action="Tell a missing key from a 0: only `get`'s second argument stands for what is missing.",
        ),
        Mistake(
            id="stage-upside-down",
            solution=settings_with(
                "reshard_after_forward", lambda config, r: config["zero_optimization"]["stage"] == 2
            ),
            told="Stage 3 is the one that frees parameters after forward.",
            action="Make it True for stage 3.",
        ),
        Mistake(
            id="always-resharded",
            solution=settings_with("reshard_after_forward", lambda config, ranks: True),
            told="You reshard after forward at stage 2 as well. There, parameters stay whole until backward is done.",
            action="Look at the stage.",
        ),
        Mistake(
            id="stage-at-the-top",
            solution=settings_with("reshard_after_forward", top_level_stage),
            told='There is no `"stage"` at the top of the configuration, so this is never True.',
            action='Look in `config["zero_optimization"]`.',
        ),
        Mistake(
            id="whatever-is-there",
            solution=settings_with("param_dtype", whatever_is_there),
            told='A section may be there and switched off, with `"enabled"` False or missing.',
            action='Ask for `"enabled"`, too.',
        ),
        Mistake(
            id="bf16-alone",
            solution=settings_with("param_dtype", bf16_alone),
            told="fp16 is overlooked.",
            action='Look at `"fp16"` as you do at `"bf16"`.',
        ),
        Mistake(
            id="short-names",
            solution=short_names,
            told="You give DeepSpeed's names of the types. FSDP2 takes torch's.",
            action='Say `"bfloat16"` and `"float16"`.',
        ),
        Mistake(
            id="any-offload",
            solution=settings_with("offload", any_offload),
            told='A section may be there and offload nowhere: with `"device"` `"none"`, or without one.',
            action='Compare the device with `"cpu"`.',
        ),
        Mistake(
            id="optimizer-overlooked",
            solution=settings_with("offload", one_offload("offload_param")),
            told="You look at the parameters alone. The optimizer may be offloaded by itself.",
            action="Look at both sections.",
        ),
        Mistake(
            id="parameters-overlooked",
            solution=settings_with("offload", one_offload("offload_optimizer")),
            told="You look at the optimizer alone. Parameters may be offloaded, too.",
            action="Look at both sections.",
        ),
        Mistake(
            id="one-micro-batch",
            solution=settings_with("micro_batches", lambda config, ranks: config.get("gradient_accumulation_steps", 1)),
            told="Where the steps are missing you take 1. But they follow from the two sizes of batches.",
            action="Divide `train_batch_size` by the micro-batch and by the number of ranks.",
        ),
        Mistake(
            id="ranks-forgotten",
            solution=settings_with("micro_batches", ranks_forgotten),
            told="You divide the whole batch by the micro-batch. All ranks share in the whole batch.",
            action="Divide by the number of ranks as well.",
        ),
    ],
    hints=[
        "For each of the five: where does the configuration say it, and what holds if it says nothing?",
        "What is left out has a default, and a default is not the same as nothing. Three of DeepSpeed's matter here.",
        '`config.get(key, default)`, also twice in a row: `config.get("bf16", {}).get("enabled", False)`.',
        '```python\nzero = config["zero_optimization"]\nreturn {\n    "reshard_after_forward": ...,\n'
        '    "max_norm": config.get("gradient_clipping", ...) or None,\n    ...\n}\n```',
    ],
    explanation="A configuration says as much by what it leaves out. Clipping is the default that bites: move a "
    "training from DeepSpeed to FSDP2 without it, and the losses part at the first large gradient. (Before release "
    "0.19.3, DeepSpeed did not clip by default.) Not all translates: FSDP2 offloads parameters, gradients and "
    "optimizer state together, and with its parameters whole only between forward and backward its stage 2 holds less "
    "between steps than DeepSpeed's.",
)
