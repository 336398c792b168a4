"""The work of a micro-batch: FLOPs and memory traffic, unit by unit, and the parameters that each piece of work needs.

A product of matrices costs 2 FLOPs for each parameter and token in forward, and twice that in backward, which makes the
well-known 6Ψ a token; attention comes on top. With full checkpointing and a GPT this is the 96 B s l h² (1 + s/6h +
V/16lh) of Narayanan et al. (arXiv 2104.04473), section 5.1. Norms, activation functions and the residual stream do
almost no FLOPs, and are bound by the memory's bandwidth: the reason that small models reach less of the peak.
"""

from typing import NamedTuple

from ..training.frozen import trained
from ..training.precision import FROZEN
from ..training.settings import Settings
from ..training.shapes import Model, Transformer

EQUAL_UNITS = 32
"""A model of unknown shapes is timed as this many equal layers: as many as Llama 7B has."""
TRAFFIC = {"fused": 100, "eager": 250}
"""Bytes of element-wise work in forward for each token, layer and hidden element; twice that in backward.

Fused: fitted, with the two rates of `Hardware`, on llm-foundry's rows on one node of 8 A100 80GB and of 8 H100, which
are eager, but a GPT's LayerNorm and GELU are a kernel each. Eager: fitted, to 50 bytes, on three rows of torchtitan and
the same compiled, by how much they are slower: Llama 2 7B of pull request 165 with FSDP2, "full" and "operators", and
Llama 3.1 8B of December 2024 on 8 GPUs.
"""

LAUNCH = {"nanotron": 2.2e-3}
"""Seconds in which the CPU launches a layer's forward, and its backward: the least for a micro-batch of any size.

Fitted, to 0.1 ms, on half of the playbook's rows with tensor parallelism in a node and one sequence. Others: unknown.
"""

AGAIN = {"none": (0, 0, 0), "selective": (0, 1, 0), "operators": (0.5, 0, 1), "full": (1, 1, 1)}
"""How much of a layer's matrices, attention (with its scores) and element-wise work backward computes again."""


class Work(NamedTuple):
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


def forward(model: Model, settings: Settings) -> list[Work]:
    """Return the work of forward: the embedding, the layers, the head."""
    outer = _sizes(model)[0]
    done = _layers(model, trained(model, settings), settings)
    return [Work(name="embedding", gathers=outer), *done, *_head(model, settings, outer, factor=1)]


def backward(model: Model, settings: Settings) -> list[Work]:
    """Return the work of backward: the same in reverse, twice, and what is computed again; nothing without any."""
    if not settings.trainable:
        return []
    own, outer = trained(model, settings), _sizes(model)[0]
    done = _layers(model, own, settings, back=True)
    mine = _sizes(own)[0]  # of the head's gradients, that of its weights is for the part of it that is trained
    head = _head(model, settings, outer, factor=1 + mine / max(1, outer)) or [Work(name="head")]
    return [head[0]._replace(gathers=outer), *done[::-1], Work(name="embedding", reduces=mine)]


def token_flops(model: Model, settings: Settings) -> float:
    """Return the FLOPs of a token as model FLOPs utilization counts them: 6Ψ + 12 L h s (PaLM, appendix B).

    Of experts, those count that compute it. Frozen parameters have no gradients: 4Ψ, and 6 for each of an adapter, or 2
    more for each that is trained. Without backward it is 2Ψ + 4 L h s.
    """
    known = model.transformer
    active = model.params - (known.idle if known else 0)
    share = trained(model, settings).params / model.params
    matrices = (4 + (6 if settings.lora_rank else 2) * share) * active
    scores = 12 * known.layers * known.q_hidden * known.seen(settings.sequence) if known else 0
    return matrices + scores if settings.trainable else (matrices - 2 * active) + scores / 3


def _layers(model: Model, own: Model, settings: Settings, *, back: bool = False) -> list[Work]:
    """Return the forward or backward of each layer. Layers of equal sizes are alike."""
    sizes = list(zip(_sizes(model)[1], _sizes(own)[1], strict=True))
    alike = {pair: _layer(model, settings, *pair, back=back) for pair in set(sizes)}
    return [alike[pair]._replace(name=f"layer {at}") for at, pair in enumerate(sizes)]


def _layer(model: Model, settings: Settings, size: float, own: float, *, back: bool) -> Work:
    """Return a layer's forward or backward. Of its `size` parameters, or beside them, `own` are trained.

    Backward computes the gradients of inputs through all matrices, and those of the weights that are trained.
    """
    known, tokens = model.transformer, settings.tokens
    again = AGAIN[settings.checkpointing] if back else (0, 0, 0)
    once = 2 if back else 1
    matrices, attention, traffic = 2 * size, 0.0, 0.0  # unknown: assume that every parameter is in a matrix
    if known:
        flops = known.layer_flops(settings.sequence, settings.capacity_factor)
        matrices, attention = (one / settings.tensor_parallel for one in flops)
        traffic = (once + again[1]) * scores(known, settings) + (once + again[2]) * element_wise(known, settings)
    weights = matrices * own / size
    through = matrices + (weights if settings.lora_rank else 0)
    width = FROZEN[settings.frozen]
    unpacked = size * (width + 4) if settings.partly_frozen and width < 2 else 0  # read, written and read in 16 bits
    unpacked += own * 6 if settings.policy.copied else 0  # in forward the parameter is cast, in backward its gradient
    return Work(
        name="layer", matrices=(through * (1 + again[0]) + (weights if back else 0)) * tokens,
        attention=(once + again[1]) * attention * tokens, traffic=traffic * tokens + (1 + again[0]) * unpacked,
        gathers=size, reduces=own if back else 0, layers=1,
    )  # fmt: skip


def element_wise(model: Transformer, settings: Settings) -> float:
    """Return the bytes for each token that element-wise work in a layer's forward moves on one rank.

    Tensor parallelism cuts the activation function: GELU reads and writes `ffn` elements, a fused gate reads two for
    each that it writes, and two kernels read three and write two. Only sequence parallelism cuts the rest, such as
    norms and the additions to the residual stream. Plain modules of torch are not fused unless they are compiled.
    Copies of tokens for their experts are written by expert and rank, and on the way back in the old order: each time
    they are read and written; with other ranks, they are sorted in between, twice. At the end they are read and added.
    """
    fused = not (model.gated and settings.plain)
    width, cut = settings.policy.activation, settings.tensor_parallel
    whole = TRAFFIC["fused" if fused else "eager"] * model.hidden * width / 2
    accesses = (3 if fused else 5) if model.gated else 2
    inside = min(accesses * model.computed_ffn * width, whole)
    stream = (whole - inside) * settings.stream / width
    copies = (7 if settings.expert_parallel > 1 else 3) * model.chosen * settings.capacity_factor
    return inside / cut + (stream + copies * model.hidden * width) / settings.between


def scores(model: Transformer, settings: Settings) -> float:
    """Return the bytes for each token that the scores of "math" attention move on one rank.

    A product writes them, the softmax reads and writes them, the next product reads them. Dropout reads and writes too.
    """
    if settings.attention != "math":
        return 0.0
    accesses = 6 if model.dropout else 4
    return accesses * model.heads * settings.sequence * settings.policy.activation / settings.tensor_parallel


def _head(model: Model, settings: Settings, outer: float, factor: float) -> list[Work]:
    known = model.transformer
    if not settings.last_stage:
        return []
    flops = 2 * outer if known is None else known.head_flops / settings.tensor_parallel
    return [Work(name="head", matrices=factor * flops * settings.tokens)]


def _sizes(model: Model) -> tuple[float, list[float]]:
    """Return the parameters of the outer unit and of each layer."""
    if not model.units:
        return 0, [model.params / EQUAL_UNITS] * EQUAL_UNITS
    return model.sizes[0], [*model.sizes[1:]]
