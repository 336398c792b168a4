"""The layout of a rank's memory: the record, and what all engines have in common.

`cut` is the way in which an engine cuts units into rank 0's tensors: not at all, flat, or by rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..training.precision import Precision
from ..training.settings import Settings
from ..training.shapes import Model, Unit, numel
from .parts import AVERAGING, END, FORWARD, MOMENTS, START, STEP

BUCKET_BYTES = 25 * 2**20
"""The default size of a bucket, as in DistributedDataParallel."""

Cut = Callable[[Sequence[Unit]], list[int]]


@dataclass(frozen=True, kw_only=True)
class Held:
    """Tensors of `numels` elements of `width` bytes, when they exist, and the reason for their size."""

    name: str
    numels: Sequence[int]
    width: int
    why: str
    moments: tuple[str, ...] = MOMENTS


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The memory of rank 0. No rank holds more, except for counts of steps (see memory.py).

    Attributes:
        policy: bytes of each kind of element, as this engine has them.
        shard: elements of each sharded tensor that the rank keeps, padding included.
        updated: elements of each tensor that its optimizer sees.
        parameters: the parameters held between steps.
        gradients: the gradients held at each moment.
        bucket_bytes: how much of the gradients is reduced at a time, outside of stage 3.
        buffers: the buffers of communication.
        copies: temporary copies on the way there.
        layers_left: the number of layers that keep their activations when the end of backward takes most.
    """

    policy: Precision
    shard: Sequence[int]
    updated: Sequence[int]
    parameters: Held
    gradients: Sequence[Held]
    bucket_bytes: int
    buffers: Sequence[Held]
    copies: Sequence[Held] = ()
    layers_left: int = 1


def uncut(units: Sequence[Unit]) -> list[int]:
    """Return the elements of each tensor of these units."""
    return [numel([shape]) for unit in units for shape in unit]


def everything(model: Model) -> list[int]:
    """Return the elements of each tensor of the model; one tensor, if only its size is known."""
    return [numel([shape]) for shape in model.shapes] or [model.params]


def parameters(whole: Sequence[int], shard: Sequence[int], settings: Settings, policy: Precision) -> Held:
    """Return the parameters held: whole up to stage 2, a shard in stage 3."""
    if settings.stage < 3:
        return Held(name="parameters", numels=whole, width=policy.parameter, why=f"{policy.parameter} bytes each")
    why = f"{policy.kept} bytes each, a shard: 1/{settings.shards}"
    return Held(name="parameters", numels=shard, width=policy.kept, why=why)


def gradients(model: Model, width: int, cut: Cut, shard: Sequence[int], settings: Settings) -> list[Held]:
    """Return the gradients held. At the start of backward: the outer unit's. At its end: all but the first layer's.

    Whole up to stage 1, then as `cut` cuts them; `shard` is the whole model's.
    """
    sharded = settings.stage >= 2
    why = f"{width} bytes each" + (f", a shard: 1/{settings.shards}" if sharded else "")

    def of(name: str, numels: Sequence[int], *moments: str) -> Held:
        return Held(name=name, numels=numels, width=width, why=why, moments=moments)

    total = shard if sharded else everything(model)
    if len(model.units) < 2:
        return [of("gradients", total, END, AVERAGING, STEP)]
    outer, _first, *others = model.units
    some = cut if sharded else uncut
    return [
        of("gradients of the outer unit", some([outer]), START),
        of("gradients of all but the first layer", some([outer, *others]), END),
        of("gradients", total, AVERAGING, STEP),
    ]


def unit_buffers(model: Model, settings: Settings, policy: Precision) -> list[Held]:
    """Return stage 3's buffers: whole parameters of the outer unit and the layers in use, whole gradients."""
    outer, *layers = map(numel, model.units)
    ahead = 1 + settings.prefetch
    gathered = outer + largest_run(layers, ahead) if settings.reshard else model.params
    under_way = 2 if settings.overlap else 1
    return [
        Held(
            name="gathered parameters", numels=[gathered], width=policy.parameter, moments=(FORWARD, START, END),
            why=f"whole: the outer unit and {ahead} layers" if settings.reshard else "whole: all are kept from forward",
        ),
        Held(
            name="gradients under way", numels=[max(largest_run(layers, under_way), outer)], width=policy.reduced,
            why=f"whole: {under_way} layers", moments=(START, END),
        ),
    ]  # fmt: skip


def largest_run(sizes: Sequence[int], length: int) -> int:
    """Return the largest sum of `length` neighbours, or of all if there are fewer."""
    return max((sum(sizes[at : at + length]) for at in range(max(1, len(sizes) - length + 1))), default=0)


class OuterGradients(NamedTuple):
    """The arrival of the gradients of the outer unit's tensors, by their numbers of elements.

    Attributes:
        early: gradients that arrive before the layers'.
        again: those of them that get a second gradient after the layers', as the weight of a tied embedding does.
        late: whether some arrive after the layers', so that backward goes on after the first layer.
    """

    early: list[int]
    again: list[int]
    late: bool


def outer_gradients(model: Model) -> OuterGradients:
    """Return the outer unit's gradients. If the order is unknown, all count as early, and backward goes on."""
    sizes, places = everything(model), [place for group in model.gradient_order for place in group]
    if not places:
        return OuterGradients(uncut(model.units[:1]), [], any(model.units[:1]))
    before_layers = len(model.units[0]) - model.behind
    layers = range(before_layers, len(sizes) - model.behind)
    at_layers = [at for at, place in enumerate(places) if place in layers] or [len(places)]
    early, late = dict.fromkeys(places[: at_layers[0]]), {*places[at_layers[0] :]}.difference(layers)
    again = [sizes[place] for place in early if place in late]
    return OuterGradients([sizes[place] for place in early], again, not late.isdisjoint(places[at_layers[-1] :]))
