"""What a rank keeps of a model: the record, and what all engines have in common.

`cut` stands for how an engine cuts units into rank 0's tensors: not at all, flat, or by rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .parts import AVERAGING, END, FORWARD, MOMENTS, START, STEP
from .precision import Precision
from .settings import Settings
from .shapes import Model, Unit, numel

BUCKET_BYTES = 25 * 2**20
"""The size of a bucket by default, as in DistributedDataParallel."""

Cut = Callable[[Sequence[Unit]], list[int]]


@dataclass(frozen=True, kw_only=True)
class Held:
    """Tensors of `numels` elements of `width` bytes; when they are there, and why they are so many."""

    name: str
    numels: Sequence[int]
    width: int
    why: str
    moments: tuple[str, ...] = MOMENTS


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What rank 0, which no rank exceeds but by counts of steps (see memory.py), keeps of a model.

    Attributes:
        policy: bytes of each kind of element, as this engine has them.
        shard: elements of what the rank keeps of what is sharded, tensor by tensor, padding included.
        updated: elements of each tensor that its optimizer sees.
        parameters: what holds them between steps.
        gradients: what holds them, at each moment.
        bucket_bytes: how much of the gradients is reduced at a time, outside of stage 3.
        buffers: what communication needs beside that.
        copies: what is made for a moment on the way there.
        layers_left: so many layers keep their activations when the end of backward takes most.
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
    """Elements of each tensor of these units."""
    return [numel([shape]) for unit in units for shape in unit]


def everything(model: Model) -> list[int]:
    """Elements of each tensor of the model; one tensor, where nothing but its size is known."""
    return [numel([shape]) for shape in model.shapes] or [model.params]


def parameters(whole: Sequence[int], shard: Sequence[int], settings: Settings, policy: Precision) -> Held:
    """Whole until stage 2, a shard in stage 3."""
    if settings.stage < 3:
        return Held(name="parameters", numels=whole, width=policy.parameter, why=f"{policy.parameter} bytes each")
    why = f"{policy.kept} bytes each, a shard: 1/{settings.shards}"
    return Held(name="parameters", numels=shard, width=policy.kept, why=why)


def gradients(model: Model, width: int, cut: Cut, shard: Sequence[int], settings: Settings) -> list[Held]:
    """At the start of backward only the outer unit has any, at its end all but the first layer.

    Whole until stage 1, then as `cut` cuts them; `shard` is that of the whole model.
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
    """Stage 3: whole parameters of the outer unit, the layer in use and those ahead; whole gradients of two units."""
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
    """The largest sum of `length` neighbours, or of all if there are fewer."""
    return max((sum(sizes[at : at + length]) for at in range(max(1, len(sizes) - length + 1))), default=0)


class OuterGradients(NamedTuple):
    """When the gradients of the outer unit's tensors come, told by their numbers of elements.

    Attributes:
        early: of those that come before the layers'.
        again: of those of them that get another one behind the layers', as the weight of a tied embedding does.
        late: some come behind the layers', so that backward goes on behind the first one.
    """

    early: list[int]
    again: list[int]
    late: bool


def outer_gradients(model: Model) -> OuterGradients:
    """The outer unit's gradients. Where the order is not known, all are taken to come early, and backward to go on."""
    sizes, places = everything(model), [place for group in model.gradient_order for place in group]
    if not places:
        return OuterGradients(uncut(model.units[:1]), [], any(model.units[:1]))
    before_layers = len(model.units[0]) - model.behind
    layers = range(before_layers, len(sizes) - model.behind)
    at_layers = [at for at, place in enumerate(places) if place in layers] or [len(places)]
    early, late = dict.fromkeys(places[: at_layers[0]]), {*places[at_layers[0] :]}.difference(layers)
    again = [sizes[place] for place in early if place in late]
    return OuterGradients([sizes[place] for place in early], again, not late.isdisjoint(places[at_layers[-1] :]))
