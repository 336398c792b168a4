"""The planner's fields, the settings of `plan` and two more: as a form and an address."""

import re
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import urlencode

from ...planner import CHOICES, HARDWARE, MODELS, PRECISIONS, Plan, known, plan, whole
from ...planner.spelling import SETTINGS, number, written

DEFAULTS = {name: field.default for name, field in SETTINGS.items()}
START: dict[str, Any] = {"model": "llama-7b", "hardware": "h100"} | DEFAULTS
START |= {"world_size": 8, "stage": 3, "sequence": None, "attention": "flash"}
"""The first value of each field. None is an empty field, whose value the planner chooses."""

LONGEST, MOST = 4096, 10**6
"""Tokens in a sequence, unless the model was made for fewer, or the length is given. The largest number of a field
that has no bytes."""

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
    "reshard": {True: "yes", False: "no", **{ranks: f"keep a shard of {ranks} ranks" for ranks in (2, 4, 8, 16, 32)}},
}  # fmt: skip
"""The values of each field that is no number, and what a reader sees."""

PARTS = [name for name, field in SETTINGS.items() if field.type is float]
"""Fields whose numbers do not have to be whole."""

BUTTONS = ("stage", "checkpointing")
"""Fields whose values are all in sight."""


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
    if given in ("", "none", None) and START[name] is None:
        return None
    if name in PARTS:
        return number(name, str(given))
    count = int(given) if isinstance(given, str) and re.fullmatch(r"-?\d{1,13}", given) else given
    return whole(name, count, _least(name), _most(name))


def entry(value: object) -> str:
    """Return a value as its field has it: empty if the planner chooses it."""
    return "" if value is None else written(value)


def address(chosen: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """Return what differs from the start, as the part of an address behind `#`."""
    return urlencode({name: entry(value) for name, value in chosen.items() if value != start[name]}, safe=",")


def planned(chosen: Mapping[str, Any]) -> Plan:
    """Return the plan of what is chosen. Raises ValueError if two settings do not go together."""
    return plan(model=chosen["model"], **_settings(chosen))


def _settings(chosen: Mapping[str, Any]) -> dict[str, Any]:
    length = chosen["sequence"] or min(LONGEST, MODELS[chosen["model"]].context)
    return {name: chosen[name] for name in DEFAULTS} | {"sequence": length}


_NAMED = re.compile(rf"\b({'|'.join(START)})=|\b({'|'.join(name for name in START if '_' in name)})\b")
_CLUSTERS = re.compile(rf"\b({'|'.join(name for name, machine in HARDWARE.items() if machine.network)})\b")


def labelled(text: str) -> str:
    """Return a message of the planner with labels instead of settings and hardware: `GPUs = 6`, not `world_size=6`."""
    text = _CLUSTERS.sub(lambda found: f"“{TEXTS['hardware'][found[1]]}”", text)
    short = {name: _label(name).partition(":")[0] for name in START}
    return _NAMED.sub(lambda found: f"{short[found[1]]} = " if found[1] else short[found[2]], text)


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " ").capitalize())


def form(chosen: Mapping[str, Any]) -> str:
    """Return the fields as HTML, for a form."""
    groups = "".join(_group(title, names, chosen) for title, names in GROUPS.items())
    rest = [name for name in START if not any(name in names for names in GROUPS.values())]
    return f'{groups}<details class="plan-more"><summary>More settings</summary>{_group("", rest, chosen)}</details>'


def _group(title: str, names: tuple[str, ...] | list[str], chosen: Mapping[str, Any]) -> str:
    legend = f"<legend>{title}</legend>" if title else ""
    return f'<fieldset class="plan-group">{legend}{"".join(_field(name, chosen[name]) for name in names)}</fieldset>'


def _field(name: str, value: Any) -> str:
    label = _label(name)
    if name not in TEXTS:
        return _number(name, label, entry(value))
    texts = {written(choice): escape(words) for choice, words in TEXTS[name].items()}
    if name not in BUTTONS:
        options = "".join(
            f'<option value="{choice}"{" selected" * (choice == written(value))}>{words}</option>'
            for choice, words in texts.items()
        )
        return f'<label class="plan-field"><span>{label}</span><select name="{name}">{options}</select></label>'
    picks = "".join(
        f'<label><input type="radio" name="{name}" value="{choice}"{" checked" * (choice == written(value))}>'
        f"<span>{words}</span></label>"
        for choice, words in texts.items()
    )
    return f'<fieldset class="plan-picks" role="radiogroup"><legend>{label}</legend><div>{picks}</div></fieldset>'


def _number(name: str, label: str, text: str) -> str:
    limits = f'min="{_least(name)}" max="{_most(name)}"{" step=any" * (name in PARTS)}'
    limits += ' placeholder="automatic"' * (START[name] is None)
    field = f'<label><span>{label}</span><input type="number" name="{name}" value="{text}" {limits}></label>'
    return f'<div class="plan-field">{field}</div>'


def _least(name: str) -> int:
    return 0 if START[name] == 0 or name in ("prefetch", "trainable") else 1


def _most(name: str) -> int:
    return 10**12 if name == "bucket_bytes" else MOST
