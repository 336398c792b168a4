"""The planner's fields, the settings of `plan` and two more: as a form, an address, a command and a call."""

import re
from collections.abc import Mapping
from dataclasses import fields
from html import escape
from typing import Any
from urllib.parse import urlencode

from ...planner import CHOICES, HARDWARE, MODELS, PRECISIONS, Plan, Settings, known, plan, whole

DEFAULTS = {field.name: field.default for field in fields(Settings)}
START: dict[str, Any] = {"model": "llama-7b", "hardware": "h100"} | DEFAULTS
START |= {"world_size": 8, "stage": 3, "sequence": None, "attention": "flash"}
"""The first value of each field. None is an empty field, whose value the planner chooses."""

LONGEST, MOST = 4096, 10**6
"""Tokens in a sequence, unless the model was made for fewer, or the length is given. The largest number of a field."""

GROUPS = {
    "": ("stage",),
    "Model": ("model", "sequence", "batch", "micro_batches"),
    "GPUs": ("hardware", "world_size", "tensor_parallel", "pipeline_parallel"),
    "Memory": ("precision", "optimizer", "checkpointing"),
}
"""The fields that matter most. All others are folded."""

LABELS = {
    "stage": "ZeRO stage: what is sharded", "world_size": "GPUs", "pipeline_parallel": "Pipeline stages",
    "batch": "Sequences of a micro-batch", "sequence": "Tokens of a sequence", "micro_batches": "Micro-batches",
    "checkpointing": "Activation checkpointing",
}  # fmt: skip
TEXTS: dict[str, dict[Any, str]] = {
    **{name: {value: value for value in values} for name, values in CHOICES.items()},
    **{name: {True: "yes", False: "no"} for name, value in DEFAULTS.items() if isinstance(value, bool)},
    "model": {name: model.name for name, model in MODELS.items()},
    "hardware": {name: machine.name for name, machine in HARDWARE.items()},
    "stage": {0: "0 nothing", 1: "1 optimizer", 2: "2 + gradients", 3: "3 + parameters"},
    "precision": {name: policy.what for name, policy in PRECISIONS.items()},
    "offload": {
        (): "nothing", ("optimizer",): "optimizer", ("parameters",): "parameters",
        ("optimizer", "parameters"): "optimizer and parameters",
    },
}  # fmt: skip
"""The values of each field that is no number, and what a reader sees."""

BUTTONS = ("stage", "checkpointing")
"""Fields whose values are all in sight."""

TIMES = (
    "const field = this.parentElement.querySelector('input'); field.value = Math.max(1, Math.floor(field.value * {}));"
    "for (const type of ['input', 'change']) field.dispatchEvent(new Event(type, {{bubbles: true}}))"
)
"""What the buttons next to a number do. A handler is the one script that a page and a notebook's output both run."""


def value(name: str, given: object) -> Any:
    """Return the value of a field: the one that is given, or that its text means.

    Raises:
        ValueError: the field has no such value, or there is no such field.
    """
    known("setting", name, START)
    if name in TEXTS:
        given = {written(choice): choice for choice in TEXTS[name]}.get(written(given), given)
        known(name, given, TEXTS[name])
        return given
    if given in ("", None) and START[name] is None:
        return None
    number = int(given) if isinstance(given, str) and re.fullmatch(r"-?\d{1,9}", given) else given
    return whole(name, number, _least(name), MOST)


def written(value: object) -> str:
    """Return a value as a form, an address and a command have it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(value)
    return "" if value is None else str(value)


def address(chosen: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """Return what differs from the start, as the part of an address behind `#`."""
    return urlencode({name: written(value) for name, value in chosen.items() if value != start[name]}, safe=",")


def planned(chosen: Mapping[str, Any]) -> Plan:
    """Return the plan of what is chosen. Raises ValueError if two settings do not go together."""
    return plan(**_arguments(chosen))


def call(chosen: Mapping[str, Any]) -> str:
    """Return the same plan as a line of Python."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in _arguments(chosen).items())
    return f"plan({arguments}).explain({chosen['hardware']!r})".replace("'", '"')


def command(chosen: Mapping[str, Any]) -> str:
    """Return the same plan as a command."""
    settings = {"gpu": chosen["hardware"]} | _arguments(chosen)
    settings = {"gpus" if name == "world_size" else name: value for name, value in settings.items()}
    options = (f"--{name.replace('_', '-')} {written(value)}" for name, value in settings.items() if name != "model")
    return " ".join(["course plan", chosen["model"], *options])


def _arguments(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `plan`: what differs from its defaults, and what a command has other defaults for."""
    length = chosen["sequence"] or min(LONGEST, MODELS[chosen["model"]].context)
    settings = {name: chosen[name] for name in ("model", *DEFAULTS)} | {"sequence": length}
    always = ("model", "world_size", "stage", "sequence", "attention")
    return {name: value for name, value in settings.items() if name in always or value != DEFAULTS[name]}


def form(chosen: Mapping[str, Any]) -> str:
    """Return the fields as HTML, for a form."""
    groups = "".join(_group(title, names, chosen) for title, names in GROUPS.items())
    rest = [name for name in START if not any(name in names for names in GROUPS.values())]
    return f'{groups}<details class="plan-more"><summary>More settings</summary>{_group("", rest, chosen)}</details>'


def _group(title: str, names: tuple[str, ...] | list[str], chosen: Mapping[str, Any]) -> str:
    legend = f"<legend>{title}</legend>" if title else ""
    return f'<fieldset class="plan-group">{legend}{"".join(_field(name, chosen[name]) for name in names)}</fieldset>'


def _field(name: str, value: Any) -> str:
    label = LABELS.get(name, name.replace("_", " ").capitalize())
    if name not in TEXTS:
        return _number(name, label, written(value))
    texts = {written(choice): escape(text) for choice, text in TEXTS[name].items()}
    if name not in BUTTONS:
        options = "".join(
            f'<option value="{choice}"{" selected" * (choice == written(value))}>{text}</option>'
            for choice, text in texts.items()
        )
        return f'<label class="plan-field"><span>{label}</span><select name="{name}">{options}</select></label>'
    picks = "".join(
        f'<label><input type="radio" name="{name}" value="{choice}"{" checked" * (choice == written(value))}>'
        f"<span>{text}</span></label>"
        for choice, text in texts.items()
    )
    return f'<fieldset class="plan-picks" role="radiogroup"><legend>{label}</legend><div>{picks}</div></fieldset>'


def _number(name: str, label: str, text: str) -> str:
    limits = f'min="{_least(name)}" max="{MOST}" placeholder="automatic"'
    field = f'<label><span>{label}</span><input type="number" name="{name}" value="{text}" {limits}></label>'
    for sign, times in (("÷2", 0.5), ("×2", 2)) if START[name] is not None else ():
        does = f'aria-label="{sign} {label}" onclick="{TIMES.format(times)}"'
        field += f'<button type="button" tabindex="-1" {does}>{sign}</button>'
    return f'<div class="plan-field">{field}</div>'


def _least(name: str) -> int:
    return 0 if START[name] == 0 or name == "prefetch" else 1
