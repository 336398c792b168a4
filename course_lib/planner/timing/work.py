"""The work of a micro-batch: FLOPs and memory traffic, unit by unit, and the parameters that each piece of work needs.

A product of matrices costs 2 FLOPs for each parameter and token in forward, and twice that in backward, which makes the
well-known 6Ψ a token; attention comes on top. With full checkpointing and a GPT this is the 96 B s l h² (1 + s/6h +
V/16lh) of Narayanan et al. (arXiv 2104.04473), section 5.1. Norms, activation functions and the residual stream do
almost no FLOPs, and are bound by the memory's bandwidth: the reason that small models reach less of the peak.
"""

from dataclasses import dataclass

from ..training.settings import Settings
from ..training.shapes import Model, numel

EQUAL_UNITS = 32
"""A model of unknown shapes is timed as this many equal layers: as many as Llama 7B has."""
TRAFFIC = 100
"""Bytes of element-wise work in forward for each token, layer and hidden element; twice that in backward.

Fitted, with the two rates of `Hardware`, on llm-foundry's rows on one node of 8 A100 80GB and of 8 H100.
"""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A piece of forward or backward.

    Attributes:
        name: for timelines.
        matrices, attention: FLOPs of one rank's micro-batch.
        traffic: bytes that element-wise work moves.
        gathers: parameters that stage 3 gathers for it.
        reduces: parameters whose gradients are complete after it.
        layers: the number of layers: 1 or 0.
    """

    name: str
    matrices: float = 0
    attention: float = 0
    traffic: float = 0
    gathers: float = 0
    reduces: float = 0
    layers: int = 0

    def times(self, factor: float) -> "Work":
        """Return as much work `factor` times, which gathers and reduces nothing."""
        return Work(name=self.name, matrices=factor * self.matrices, attention=factor * self.attention,
                    traffic=factor * self.traffic)  # fmt: skip

    def plus(self, other: "Work", gathers: float = 0, reduces: float = 0) -> "Work":
        """Return both, as a layer that gathers and reduces so many parameters."""
        return Work(name=self.name, matrices=self.matrices + other.matrices, attention=self.attention + other.attention,
                    traffic=self.traffic + other.traffic, gathers=gathers, reduces=reduces, layers=1)  # fmt: skip


def forward(model: Model, settings: Settings) -> list[Work]:
    """Return the work of forward: the embedding, the layers, the head."""
    outer, layers = _sizes(model)
    nothing = Work(name="")
    return [
        Work(name="embedding", gathers=outer),
        *(_layer(model, settings, size, at).plus(nothing, gathers=size) for at, size in enumerate(layers)),
        *_head(model, settings, outer, factor=1),
    ]


def backward(model: Model, settings: Settings) -> list[Work]:
    """Return the work of backward: the same in reverse, twice, and what is computed again."""
    outer, layers = _sizes(model)
    done = []
    for at, size in reversed(list(enumerate(layers))):
        once = _layer(model, settings, size, at)
        done.append(once.times(2).plus(_again(once, model, settings), gathers=size, reduces=size))
    head = _head(model, settings, outer, factor=2) or [Work(name="head")]
    return [
        Work(name="head", matrices=head[0].matrices, gathers=outer), *done, Work(name="embedding", reduces=outer)
    ]  # fmt: skip


def token_flops(model: Model, settings: Settings) -> float:
    """Return the FLOPs of a token as model FLOPs utilization counts them: 6Ψ + 12 L h s (PaLM, appendix B)."""
    known = model.transformer
    return 6 * model.params + (12 * known.layers * known.hidden * settings.sequence if known else 0)


def _layer(model: Model, settings: Settings, size: float, at: int) -> Work:
    tokens, known = settings.tokens, model.transformer
    if known is None:  # assume that every parameter is in a matrix
        return Work(name=f"layer {at}", matrices=2 * size * tokens)
    matrices, attention = known.layer_flops(settings.sequence)
    tensor = settings.tensor_parallel
    traffic = TRAFFIC * known.hidden * settings.policy.activation / 2 * tokens / tensor
    return Work(name=f"layer {at}", matrices=tokens * matrices / tensor, attention=tokens * attention / tensor,
                traffic=traffic)  # fmt: skip


def _again(once: Work, model: Model, settings: Settings) -> Work:
    """Return the part of a layer's forward that backward computes again."""
    if settings.checkpointing == "full":
        return once
    if model.transformer is None or settings.checkpointing == "none":
        return Work(name="")
    if settings.checkpointing == "selective":
        return Work(name="", attention=once.attention)
    return Work(name="", matrices=once.matrices / 2, traffic=once.traffic)  # every second product


def _head(model: Model, settings: Settings, outer: float, factor: int) -> list[Work]:
    known = model.transformer
    if not settings.last_stage:
        return []
    flops = 2 * outer if known is None else known.head_flops / settings.tensor_parallel
    return [Work(name="head", matrices=factor * flops * settings.tokens)]


def _sizes(model: Model) -> tuple[float, list[float]]:
    """Return the parameters of the outer unit and of each layer."""
    if not model.units:
        return 0, [model.params / EQUAL_UNITS] * EQUAL_UNITS
    outer, *layers = map(numel, model.units)
    return outer, list(layers)
