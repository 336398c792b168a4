"""The plan of a training: its cost for each rank, in bytes held, bytes sent and seconds.

States and bytes sent follow from the shapes, to the byte, wherever these are known. Shapes of some config.json lack
a few vectors: see docs/limits.md. Peaks are formulas: `validate()` compares them with published runs on GPUs. Memory
that lives for less than a layer's time is not planned: a dry run measures it.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from html import escape
from math import floor
from numbers import Real
from typing import Any

from . import explain
from .memory.activations import held_back
from .memory.memory import parts
from .memory.parts import BEGIN, CATEGORIES, MOMENTS, STEP, Part
from .spelling import SETTINGS
from .timing import step
from .timing.hardware import Hardware
from .timing.hardware import hardware as named
from .timing.schedule import Timeline
from .timing.volume import Collective, collectives
from .timing.work import token_flops
from .training.checks import PlanError, known, whole
from .training.frozen import trained
from .training.models import MODELS
from .training.pieces import piece
from .training.settings import Settings
from .training.shapes import Model, Transformer, of_params, of_transformer

WORKSPACE_BYTES = 4 * 2**25
"""Bytes of libraries through torch's allocator: 32 MiB on Hopper for each of cuBLAS and cuBLASLt (torch, pull request
120925), in forward's thread and in backward's. torch 2.11 took half of it on an H200: see docs/gpu.md."""

FRAGMENTATION = {"eager": 1.18, "compiled": 1.06, "expandable": 1.03, "nanotron": 1.015}
"""Bytes that torch's caching allocator reserves, for each byte that it needs at the peak and for gradients.

Fitted, one number each: eager and compiled on torchtitan's pull request 165, expandable segments on its benchmarks of
December 2024, nanotron on half of the playbook's rows. See docs/validation.md.
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan:
    """The cost of a step for rank 0, whose shards are the largest. See `plan`. It shows itself as a page.

    Attributes:
        model: the model.
        settings: how it is trained.
    """

    model: Model
    settings: Settings

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Everything that the rank holds, part by part, with the reason for its size."""
        return parts(self.piece, self.settings)

    @cached_property
    def piece(self) -> Model:
        """The piece of the model that the rank holds: all of it without tensor and pipeline parallelism."""
        return piece(self.model, self.settings)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives that the rank calls during a step."""
        return collectives(self.piece, self.settings)

    @cached_property
    def moments(self) -> dict[str, dict[str, int]]:
        """Bytes on the device by category, at each moment of a step that parts.py defines.

        The start of forward is left out if it holds the same as the moment between steps.
        """
        found = {moment: dict.fromkeys(CATEGORIES, 0) for moment in MOMENTS}
        for part in (part for part in self.parts if not part.host):
            for moment in part.moments:
                found[moment][part.category] += part.nbytes
        if all(part.moments == MOMENTS or BEGIN not in part.moments for part in self.parts):
            del found[BEGIN]
        return found

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes on the device by category, each at the moment of the step when it is largest.

        Their sum is more than `peak_bytes` if activations are large: they are freed while gradients are made.
        """
        return {category: max(held[category] for held in self.moments.values()) for category in CATEGORIES}

    @cached_property
    def peak_moment(self) -> str:
        """The moment of the step when the device holds most."""
        return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def peak_bytes(self) -> int:
        """The most bytes that the device holds at once."""
        return sum(self.moments[self.peak_moment].values())

    @cached_property
    def needed(self) -> dict[str, int]:
        """Bytes on the device by moment, each with the gradients that come later.

        These rarely fit the blocks freed by then. So the moment that needs most can come before the peak.
        """
        last = self.moments[STEP]["gradients"]
        return {at: sum(held.values()) + max(0, last - held["gradients"]) for at, held in self.moments.items()}

    @cached_property
    def stages(self) -> "tuple[Plan, ...]":
        """The plan of this stage of a pipeline, and of the first, the second and the last, one of which holds most.

        The last has the logits. The second has a layer more than the first where layers do not divide; it is left
        out of an interleaved pipeline, because Llama 3 405B ran in 80 GB, and its second stage is planned with 92 GB.
        """
        settings = self.settings
        if settings.pipeline_parallel == 1:
            return (self,)
        stages = {0, settings.pipeline_parallel - 1} | ({1} if settings.model_chunks == 1 else set())
        return self, *(replace(self, settings=replace(settings, pipeline_stage=stage))
                       for stage in sorted(stages - {settings.pipeline_stage}))  # fmt: skip

    @cached_property
    def fullest(self) -> "Plan":
        """The plan of the stage that holds most at its peak, this one if it is alone."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def active_bytes(self) -> int:
        """The peak that `torch.cuda.max_memory_allocated` is expected to report: with `WORKSPACE_BYTES`."""
        return self.peak_bytes + WORKSPACE_BYTES

    @property
    def reserved_bytes(self) -> int:
        """The bytes that torch's caching allocator takes from the device: see `needed` and `FRAGMENTATION`.

        Frozen parameters are allocated once, before the first step, and leave no gaps. nanotron's needs are fitted on
        what it reserved.
        """
        still = sum(part.nbytes for part in self.parts if part.name == "frozen parameters" and not part.host)
        kind = "expandable" if self.settings.expandable else "compiled" if self.settings.compiled else "eager"
        kind = "nanotron" if self.settings.engine == "nanotron" else kind
        held = self.settings.tokens * held_back(self.model.transformer, self.settings) if self.model.transformer else 0
        return still + round(FRAGMENTATION[kind] * (WORKSPACE_BYTES + max(self.needed.values()) - still) + held)

    @property
    def host_bytes(self) -> int:
        """The most bytes that this rank holds at once in the host's memory."""
        away = [part for part in self.parts if part.host]
        return max(sum(part.nbytes for part in away if moment in part.moments) for moment in MOMENTS)

    @property
    def sent_bytes(self) -> int:
        """Bytes that one rank sends in a step, as rings send them; rounded down once, as the meter does.

        Without activations, if only a number or shapes are known: see `explain.lacks_exchange`.
        """
        return floor(sum((call.sent for call in self.collectives), Fraction()))

    def timeline(self, hardware: str | Hardware) -> Timeline:
        """Return the schedule of a step on this hardware. Raises ValueError if the ranks do not fit it."""
        return step.timeline(self.model, self.settings, named(hardware))

    def step_seconds(self, hardware: str | Hardware) -> float:
        """Return the seconds of a step; errors as `timeline`."""
        return self.timeline(hardware).seconds

    def tokens_per_second(self, hardware: str | Hardware) -> float:
        """Return the tokens a second for each GPU; errors as `timeline`."""
        return self.settings.tokens_per_rank / self.step_seconds(hardware)

    def mfu(self, hardware: str | Hardware) -> float:
        """Return the model FLOPs utilization: useful FLOPs a second as a part of the peak; errors as `timeline`.

        What backward recomputes is not useful (PaLM, arXiv 2204.02311, appendix B).
        """
        peak = named(hardware).peak_flops(self.settings.policy.fast)
        return self.tokens_per_second(hardware) * token_flops(self.model, self.settings) / peak

    def explain(self, hardware: str | Hardware | None = None) -> str:
        """Return where each byte goes, and with hardware each second, in words; errors as `timeline`."""
        lines = [*explain.header(self), *explain.memory(self), *explain.traffic(self)]
        if hardware is not None:
            lines += [*explain.time(self, named(hardware)), *explain.band((self, named(hardware)))]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return "\n\n".join(explain.page(self))

    def _repr_html_(self) -> str:
        card = '<div class="course-widget"><div class="course-card">'
        return f"{card}<pre>{escape(repr(self))}</pre></div></div>"


def plan(params: Any = None, *, model: "str | Transformer | Model | None" = None, **given: Any) -> Plan:
    """Return the cost of training `params` parameters, or a `model`, for each rank.

    >>> plan(params=7.5e9, world_size=64, stage=2, precision="mixed").bytes["optimizer"]
    1406250000

    Args:
        params: the number of parameters, such as 7.5e9; or the shapes of all tensors, in the order of
            `model.parameters()`, which makes the bytes exact to the last piece of padding; or shapes grouped into
            units, which are what stage 3 gathers at once.
        model: instead of `params`, one of `MODELS` by name, or a `Transformer` of your own; then activations are
            planned too.
        given: any of `Settings`, such as world_size, stage, precision, batch, tensor_parallel.

    Raises:
        ValueError: neither or both of params and model; or an unknown setting, or two that do not go together.
    """
    if (params is None) == (model is None):
        raise PlanError(
            f"plan(params={params!r}, model={model!r}): give one of the two, such as params=7.5e9 or model='llama-7b'."
        )
    described = of_params(params) if model is None else model
    if not isinstance(described, Transformer | Model):
        known("model", described, MODELS)
        described = MODELS[described]
    if isinstance(described, Transformer):
        described = of_transformer(described)
    if isinstance(count := given.get("trainable"), Real) and float(count) > 1:
        given["trainable"] = whole("trainable", count, most=described.params) / described.params
    for name in given:
        known("setting", name, SETTINGS)
    planned = Plan(model=described, settings=Settings(**given))
    transformer, sequence = described.transformer, planned.settings.sequence
    if transformer and transformer.positions and sequence > transformer.context:
        raise PlanError(
            f"sequence={sequence} with {transformer.name}: it has learned positions for {transformer.context} tokens. "
            "Choose a shorter sequence."
        )
    trained(planned.piece, planned.settings)  # raises if the model cannot be cut or adapted in this way
    return planned
