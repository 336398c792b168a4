"""Explain a DeepSpeed configuration in words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CourseError
from .faults import AUTO, faults
from .settings import SECTIONS, SETTINGS, UNEXPLAINED, Setting

SURPRISES = {
    "gradient_clipping": 0,
    "zero_optimization.reduce_bucket_size": 1,
    "zero_optimization.stage3_param_persistence_threshold": 3,
    "zero_optimization.stage3_max_live_parameters": 3,
}
"""Settings whose default surprises, with the lowest stage to which it applies."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation:
    """The explanation of a configuration.

    Attributes:
        settings: the explained settings, by their dotted names, with their values.
        unexplained: names that DeepSpeed knows and that are not explained here.
        unsaid: settings that are not given, and whose default surprises.
        faults: a sentence for each fault; empty if none is known.
    """

    settings: Mapping[str, Any]
    unexplained: tuple[str, ...]
    unsaid: tuple[str, ...]
    faults: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.faults:
            yield "Faults"
            yield from (f"  ✗ {fault}" for fault in self.faults)
        for name, value in self.settings.items():
            auto = ": Hugging Face's Trainer fills it in; without it, the default holds" if value == AUTO else ""
            yield f"{name} = {_shown(value)}{auto}"
            yield from _in_words(SETTINGS[name])
        for name in self.unsaid:
            yield f"{name} is not given: {SETTINGS[name].default}"
            yield from _in_words(SETTINGS[name])
        if self.unexplained:
            yield f"Not explained here: {', '.join(self.unexplained)}"


def explain(config: Mapping[str, Any], world_size: int | None = None) -> Explanation:
    """Explain what each setting of a DeepSpeed configuration does, what it costs, and its equivalent in FSDP2.

    Args:
        config: the configuration. `json.load(open("ds_config.json"))` reads one from a file.
        world_size: the number of ranks, to compare with the sizes of batches.

    Raises:
        CourseError: `config` is no mapping.
    """
    if not isinstance(config, Mapping):
        raise CourseError(f"explain({config!r}): that is no configuration. Read a file with json.load(open(path)).")
    flat = dict(_flat(config))
    stage = flat.get("zero_optimization.stage", 0)
    return Explanation(
        settings={name: value for name, value in flat.items() if name in SETTINGS},
        unexplained=tuple(name for name in flat if name in UNEXPLAINED),
        unsaid=tuple(
            name for name, since in SURPRISES.items() if name not in flat and stage in (1, 2, 3, 0) and stage >= since
        ),
        faults=tuple(faults(flat, world_size)),
    )


def _flat(config: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        name = f"{section}.{key}" if section else str(key)
        if name in SECTIONS and isinstance(value, Mapping):
            yield from _flat(value, name)
        else:
            yield name, value


def _in_words(setting: Setting) -> Iterator[str]:
    yield f"    does   {setting.does}"
    yield f"    costs  {setting.costs}"
    yield f"    FSDP2  {setting.fsdp2}"


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
