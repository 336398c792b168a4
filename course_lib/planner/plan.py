"""The plan of a training: its cost for each rank, in bytes held, bytes sent and seconds.

[Note: how exact a plan is]
States and bytes sent are exact, to the byte, wherever the shapes are known. The peak is within 2 % of the measured
memory of this course's engines, DistributedDataParallel, ZeroRedundancyOptimizer and `fully_shard`, for a `model`, and
for shapes if activations are small compared with the states: shapes say nothing about activations. Give
`activation_bytes` with the gradients of activations in it, which are a good part of it in a convolutional model: the
most that both take at once, as the meter finds it in a step of the plain model on one rank,

    held = (e.deltas.get("activations", 0) + e.deltas.get("other", 0) for e in run.memory[0].timeline)
    activation_bytes = max(itertools.accumulate(held))

Then the peak is within 3 % if this is four fifths of it or more. If it is less, gradients of parameters and of
activations may be largest together in the middle of backward, and the peak is higher than planned.

[Note: the order of gradients]
`gradient_order` lists positions of tensors, all units laid end to end. One operator makes a list's gradients, such as
those of an LSTM's layer. By default the order is from the last tensor to the first, each in its own list. A position
that occurs twice belongs to a tied weight. Stage 2's memory depends on the order if a model uses tensors in a different
order than it has them. torch reports the order, except for tensors that are tied or made at once:

    for place, p in enumerate(model.parameters()):
        p.register_hook(lambda _, at=place: order.append([at]))
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import floor
from typing import Any

from . import explain
from .memory.engines import layout
from .memory.memory import parts
from .memory.parts import BEGIN, CATEGORIES, MOMENTS, Part
from .timing import step
from .timing.hardware import Hardware
from .timing.hardware import hardware as named
from .timing.schedule import Timeline
from .timing.volume import Collective, collectives
from .training.checks import pick, whole
from .training.models import MODELS
from .training.settings import Settings, settings
from .training.shapes import Model, Transformer, of_params, of_transformer


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cost of a step for rank 0, whose shards are the largest. See `plan`.

    Attributes:
        model: the model.
        settings: how it is trained.
    """

    model: Model
    settings: Settings

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Everything that the rank holds, part by part, with the reason for its size."""
        return parts(self.model, self.settings)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives that the rank calls during a step."""
        return collectives(self.model, self.settings)

    @cached_property
    def moments(self) -> dict[str, dict[str, int]]:
        """Bytes on the device by category, at each moment of a step that parts.py defines.

        The start of forward is left out if it holds the same as the moment between steps.
        """
        distinct = {moment for part in self.parts for moment in part.moments if part.moments != MOMENTS}
        return {
            moment: {
                category: sum(
                    part.nbytes
                    for part in self.parts
                    if part.category == category and moment in part.moments and not part.host
                )
                for category in CATEGORIES
            }
            for moment in MOMENTS
            if moment != BEGIN or moment in distinct
        }

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes on the device by category, each at the moment of the step when it is largest.

        Their sum is more than `peak_bytes` if activations are large: they are freed while gradients are made.
        """
        return {category: max(held[category] for held in self.moments.values()) for category in CATEGORIES}

    @property
    def peak_moment(self) -> str:
        """The moment of the step when the device holds most."""
        return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def peak_bytes(self) -> int:
        """The most bytes that the device holds at once."""
        return sum(self.moments[self.peak_moment].values())

    @property
    def host_bytes(self) -> int:
        """Bytes of this rank in the host's memory."""
        return sum(part.nbytes for part in self.parts if part.host)

    @property
    def padding_elements(self) -> int:
        """Elements that all shards together have beyond Ψ. ZeroRedundancyOptimizer cuts no tensor, and pads none."""
        cuts = self.settings.engine != "torch" or self.settings.stage == 3
        held = sum(layout(self.model, self.settings).shard) * self.settings.shards
        return held - self.model.params if cuts else 0

    @property
    def sent_bytes(self) -> int:
        """Bytes that one rank sends in a step, as rings send them; rounded down once, as the meter does."""
        return floor(sum((call.sent for call in self.collectives), Fraction()))

    def timeline(self, hardware: str | Hardware) -> Timeline:
        """Return the schedule of a step on this hardware.

        Raises:
            ValueError: there is no such hardware, or the ranks do not fit it.
        """
        return step.timeline(self.model, self.settings, named(hardware))

    def step_seconds(self, hardware: str | Hardware) -> float:
        """Return the seconds of a step on this hardware; errors as `timeline`."""
        return self.timeline(hardware).seconds

    def explain(self, hardware: str | Hardware | None = None) -> str:
        """Return where each byte goes, and with hardware each second, in words; errors as `timeline`."""
        lines = [*explain.header(self.model, self.settings), *explain.memory(self), *explain.traffic(self)]
        return "\n".join([*lines, *(explain.time(self, named(hardware)) if hardware is not None else [])])


def plan(
    params: Any = None,
    *,
    model: "str | Transformer | Model | None" = None,
    gradient_order: Any = None,
    **given: Any,
) -> Plan:
    """Return the cost of training `params` parameters, or a `model`, for each rank.

    >>> plan(params=7.5e9, world_size=64, stage=2, precision="mixed").bytes["optimizer"]
    1406250000

    Args:
        params: the number of parameters, such as 7.5e9; or the shapes of all tensors, in the order of
            `model.parameters()`, which makes the bytes exact to the last piece of padding; or shapes grouped into
            units, which are what stage 3 gathers at once.
        gradient_order: with shapes, the order in which backward makes their gradients; `plan.py` in this package says
            more.
        model: instead of `params`, one of `MODELS` by name, or a `Transformer` of your own; then activations are
            planned too.
        given: any of `Settings`: world_size, stage, precision, optimizer, batch, sequence, checkpointing, attention,
            shard_size, offload, bucket_bytes, prefetch, overlap, reshard, engine, implementation, activation_bytes,
            allocator.

    Raises:
        ValueError: neither or both of params and model; an unknown setting, or two that do not go together; or an order
            that does not fit these tensors.
    """
    if (params is None) == (model is None):
        raise ValueError(
            f"plan(params={params!r}, model={model!r}): give one of the two, such as params=7.5e9 or model='llama-7b'."
        )
    if model is not None and gradient_order is not None:
        raise ValueError("gradient_order with model=…: it is known of a model. Leave it out, or give params.")
    described = of_params(params, gradient_order) if model is None else _described(model)
    return Plan(model=described, settings=_fitting(described, settings(**given)))


def largest_params(memory_bytes: float, **given: Any) -> int:
    """Return the largest number of parameters whose states fit `memory_bytes` per rank, as in the ZeRO paper's table 2.

    Raises:
        ValueError: as `plan`; or nothing is held on the device.
    """
    whole("memory_bytes", memory_bytes, least=0)
    probe = 10**9 * settings(**given).world_size
    held = sum(plan(params=probe, **given).bytes.values())
    if not held:
        raise ValueError("offload: all states are on the host, so that any number fits. Offload less.")
    return floor(Fraction(memory_bytes) * probe / held)


def _described(model: "str | Transformer | Model") -> Model:
    if isinstance(model, Model):
        return model
    return of_transformer(model if isinstance(model, Transformer) else pick("model", model, MODELS))


def _fitting(model: Model, chosen: Settings) -> Settings:
    """Return the settings, unless they ask for a longer sequence than the model was made for."""
    known = model.transformer
    if known and chosen.sequence > known.context:
        raise ValueError(
            f"sequence={chosen.sequence} with {known.name}: it was made for at most {known.context} tokens. "
            "Choose a shorter sequence."
        )
    return chosen
