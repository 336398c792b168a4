"""The work of a step: FLOPs, unit by unit, and the parameters that each piece of work needs.

A product of matrices costs 2 FLOPs for each parameter and token in forward, and twice that in backward, which makes the
well-known 6Ψ a token; attention comes on top. With full checkpointing and a GPT this is the 96 B s l h² (1 + s/6h +
V/16lh) of Narayanan et al. (arXiv 2104.04473), section 5.1.
"""

from dataclasses import dataclass

from ..training.settings import Settings
from ..training.shapes import Model, numel

EQUAL_UNITS = 32
"""A model of unknown shapes is timed as this many equal layers: as many as Llama 7B has."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A piece of forward or backward.

    Attributes:
        name: for timelines.
        flops: for the batch of one rank.
        gathers: parameters that stage 3 gathers for it.
        reduces: parameters whose gradients are complete after it.
    """

    name: str
    flops: float
    gathers: float = 0
    reduces: float = 0


def forward(model: Model, settings: Settings) -> list[Work]:
    """Return the work of forward: the embedding, the layers, the head."""
    outer, layers = _sizes(model)
    layer_flops, head_flops, _ = _flops(model, settings)
    names = zip(layers, layer_flops, strict=True)
    return [
        Work(name="embedding", flops=0, gathers=outer),
        *(Work(name=f"layer {i}", flops=flops, gathers=size) for i, (size, flops) in enumerate(names)),
        Work(name="head", flops=head_flops),
    ]


def backward(model: Model, settings: Settings) -> list[Work]:
    """Return the work of backward: the same in reverse, at twice the FLOPs, and recomputation."""
    outer, layers = _sizes(model)
    layer_flops, head_flops, again = _flops(model, settings)
    names = list(enumerate(zip(layers, layer_flops, again, strict=True)))
    return [
        Work(name="head", flops=2 * head_flops, gathers=outer),
        *(
            Work(name=f"layer {i}", flops=2 * flops + more, gathers=size, reduces=size)
            for i, (size, flops, more) in reversed(names)
        ),
        Work(name="embedding", flops=0, reduces=outer),
    ]


def _sizes(model: Model) -> tuple[float, list[float]]:
    """Return the parameters of the outer unit and of each layer."""
    if not model.units:
        return 0, [model.params / EQUAL_UNITS] * EQUAL_UNITS
    outer, *layers = map(numel, model.units)
    return outer, list(layers)


def _flops(model: Model, settings: Settings) -> tuple[list[float], float, list[float]]:
    """Return forward's FLOPs by layer and of the head, and the FLOPs that backward recomputes, by layer."""
    tokens, transformer = settings.batch * settings.sequence, model.transformer
    if transformer is None:  # assume that every parameter is in a matrix
        outer, layers = _sizes(model)
        each = [2 * size * tokens for size in layers]
        return each, 2 * outer * tokens, each if settings.checkpointing == "full" else [0.0] * len(each)
    matrices, attention = transformer.layer_flops(settings.sequence)
    again: float = {"none": 0, "selective": attention, "full": matrices + attention}[settings.checkpointing]
    if settings.attention == "flash":
        again += attention / 2  # backward recomputes the scores, one of the core's two products
    count = transformer.layers
    return [tokens * (matrices + attention)] * count, tokens * transformer.head_flops, [tokens * again] * count
