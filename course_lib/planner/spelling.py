"""Settings as words: the options of `course plan`, and a value as its option, an address and a form have it."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from .training.checks import PlanError
from .training.settings import Settings

SHORT = {"world_size": "--gpus", "tensor_parallel": "--tp", "pipeline_parallel": "--pp", "context_parallel": "--cp",
         "expert_parallel": "--ep"}  # fmt: skip
SETTINGS = {field.name: field for field in fields(Settings)}
USUAL = {"world_size": "those of a node", "sequence": "4096, or the model's context", "stage": 3, "attention": "flash"}
"""The defaults of `course plan` that are not those of `Settings`."""


def flag(name: str) -> str:
    """Return a setting's option: `--world-size`."""
    return f"--{name.replace('_', '-')}"


def option(name: str) -> str:
    """Return the shortest option of a setting: `--gpus`."""
    return SHORT.get(name, flag(name))


def written(value: Any) -> str:
    """Return a setting's value in words: yes, no, none, a number, or names joined by commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, Collection) and not isinstance(value, str)):
        return ",".join(value or ()) or "none"
    return str(value)


def number(what: str, text: str, *words: str) -> float:
    """Return the number: 64, 7e9, 7b. Raises PlanError, which names the `words` that would do, too."""
    try:
        value = float(text.lower().replace("m", "e6").replace("b", "e9").replace("t", "e12"))
    except ValueError:
        choices = " or ".join([*words, "a number, such as 8 or 7e9"])
        raise PlanError(f"{what} {text}: it does not have this value. Give {choices}.") from None
    return int(value) if value.is_integer() else value


def read(name: str, text: str) -> Any:
    """Return the setting's value that `written` has written. Raises PlanError if it is none."""
    kind, typed = str(SETTINGS[name].type), text
    text = text.lower().replace("bfloat16", "bf16")
    if "Collection" in kind:
        return () if text == "none" else tuple(dict.fromkeys(map(str.strip, text.split(","))))
    words: dict[str, Any] = {"yes": True, "no": False} if "bool" in kind else {}
    words |= {"none": None} if "None" in kind else {}
    if text in words or "str" in kind:
        return words.get(text, text)
    if name == "sequence" and re.fullmatch(r"\d+k", text):
        return 1024 * int(text[:-1])
    if "int" in kind or "float" in kind:
        return number(option(name), typed, *words)
    raise PlanError(f"{option(name)} {typed}: it does not have this value. Give {' or '.join(words)}.")


def flags(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of these settings, and their values."""
    for name, value in settings.items():
        yield from (option(name), written(value))


_OTHERS = ("tokens", "days", "params", "global_batch")
_OPTIONS = {
    "hardware": "--gpu",
    "most_ranks": "--gpus",
    **{name: option(name) for name in (*SETTINGS, *_OTHERS)},
}
_GIVEN = re.compile(rf"\b({'|'.join(_OPTIONS)})=(\[[^]]*\]|\([^)]*\)|'[^']*'|[\w.+-]*\w)")
_NAMED = re.compile(rf"\b({'|'.join(name for name in _OPTIONS if '_' in name)})\b")


def as_options(text: str) -> str:
    """Return a message of the planner with options instead of settings: `--gpus 6`, not `world_size=6`."""
    text = _GIVEN.sub(lambda found: f"{_OPTIONS[found[1]]} {_word(found[2].strip('[](),').replace(', ', ','))}", text)
    text = _NAMED.sub(lambda found: _OPTIONS[found[1]], text.replace("model='", "'"))
    return re.sub(r"(?<!=)'([\w.,-]+)'", r"\1", text)


def _word(text: str) -> str:
    return {"True": "yes", "False": "no", "None": "none", "": "none"}.get(text, text)


def command(model: Sequence[str], hardware: str, settings: Mapping[str, Any]) -> str:
    """Return the command that prints the plan of all of these settings; `model` is what it says of the model."""
    changed = {name: value for name, value in settings.items() if value != USUAL.get(name, SETTINGS[name].default)}
    return shlex.join(["course", "plan", *model, "--gpu", hardware, *flags(changed)])
