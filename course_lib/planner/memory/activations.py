"""The activations that forward keeps for backward, item by item, as Korthikanti et al. count them.

"Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), section 4. For GPT in 16 bits a
layer keeps sbh (34 + 5 a s / h) bytes; without the attention core 34 sbh; its input only, 2 sbh. s: tokens in a
sequence, b: sequences, h: hidden, a: heads. The paper names every item below. Here the items are written for any width
of elements, and without what a model does not have: no masks where there is no dropout; four products inside a gated
feed-forward layer where GPT has two, three if compiled; and RMSNorm's input in fp32 where it is plain torch. As in the
paper, means and variances of the norms and rotary positions are left out. All bytes are per token, of one of the
tensor-parallel ranks.
"""

from ..training.settings import LOSSES, Settings
from ..training.shapes import Transformer

_MASK = 1  # bytes of an element of a dropout mask, on GPUs; on CPUs torch keeps it as wide as the data


def layer(model: Transformer, settings: Settings) -> dict[str, float]:
    """Return the bytes that one layer keeps, without recomputation.

    What lies between the matrices is cut only by sequence parallelism, the rest by tensor parallelism (section 4.2).
    Backward through a frozen matrix needs the matrix and not its input: torch saves that only for the gradient of the
    matrix (tools/autograd/derivatives.yaml, mm). So it is kept only where something is trained beside the matrix, or
    where another operation needs it, such as attention its result. Inputs of experts are kept for each of them, and
    their results for the gradients of the weights with which they are added; the paper's engine multiplies with these
    inside the expert, as Megatron-Core does.
    """
    h, scores = model.hidden, model.heads * settings.sequence
    width, stream = settings.policy.activation, settings.stream
    q, cut, between = model.q_hidden, settings.tensor_parallel, settings.between
    copies = 3 * q * width if settings.attention == "flash_copies" else 0
    beside = not settings.partly_frozen or settings.adapted == "all"
    products = _products(model, settings) - (not beside)  # the last one is the input of a matrix
    sent = model.chosen * settings.capacity_factor * h * width / between
    entering = 1 if settings.keeps_gathered else between  # the ranks that share the input of a matrix
    norm = h * stream
    if model.gated and settings.plain:  # x.float() * rsqrt(...), then the weight: transformers, torchtune and LitGPT
        norm = h * (4 + (0 if settings.partly_frozen else stream))
    apart = stream > width and model.gated and settings.plain  # autocast casts the input of each matrix
    core = scores * width + (scores * (width + _MASK) if model.dropout else 0)
    return {
        "inputs of the two norms": 2 * norm / between,
        "input of queries, keys and values": (3 if apart else 1) * h * width / entering,
        "queries, keys and values": ((q + 2 * model.kv_hidden) * width + copies) / cut,
        "attention core": (core if settings.attention == "math" else 4 * model.heads) / cut,
        "input of the attention's projection": q * width / cut,
        "input of the feed-forward layer": (2 if apart else 1) * h * width / entering if beside or model.experts else 0,
        "inputs of experts": sent if beside else 0,
        "results of experts": 0 if settings.engine == "paper" else sent,
        "inside of the feed-forward layer": products * inside(model, settings) * width / cut,
        "dropout masks": (2 * h * _MASK if model.dropout else 0) / between,
    }


def inside(model: Transformer, settings: Settings) -> float:
    """Return the elements of a token inside the feed-forward layer, of all experts that compute it, with padding."""
    experts = model.chosen * settings.capacity_factor * model.ffn + model.shared_ffn
    return experts if model.experts else model.ffn


def _products(model: Transformer, settings: Settings) -> int:
    """Return how many results of the feed-forward layer's width backward needs.

    They are those before and after its activation function, and in a gated one also the gate's factor and the product.
    A compiler computes one of a gated layer's again.
    """
    return (3 if settings.compiled else 4) if model.gated else 2


def kept(model: Transformer, settings: Settings) -> float:
    """Return the bytes that one layer keeps until its backward, by checkpointing.

    "operators" is torchtitan's selective checkpointing: the layer's input, the attention's result, and every second
    matrix product from the first on, which in a gated layer are queries, values, the gate and the layer's output. The
    experts' grouped products are not in its list (_get_default_save_ops); what ranks exchange for experts is.
    """
    items, width, between = layer(model, settings), settings.policy.activation, settings.between
    stream = model.hidden * settings.stream / between
    if settings.checkpointing == "full":
        return stream
    if settings.checkpointing == "operators":
        q, gated, cut = model.q_hidden, model.gated, settings.tensor_parallel
        products = q + (1 if gated else 2) * model.kv_hidden + (model.shared_ffn if model.experts else model.ffn)
        exchanged = items["inputs of experts"] + items["results of experts"] if settings.expert_parallel > 1 else 0
        every_second = (gated * model.hidden / between + (q + products) / cut) * width
        return stream + every_second + 4 * model.heads / cut + exchanged
    return sum(items.values()) - (items["attention core"] if settings.checkpointing == "selective" else 0)


def gradients_at_work(model: Transformer, settings: Settings) -> float:
    """Return the most that backward through one layer adds: gradients of activations, less the activations freed.

    There is always the gradient of the residual stream. First come the gradients inside the feed-forward layer, half as
    much as it keeps; later, when all that it kept is freed, those before and after the softmax. Not in the paper.
    """
    cut, wide = settings.tensor_parallel, _products(model, settings) * inside(model, settings)
    h = model.hidden if settings.sequence_parallel else model.hidden * cut
    scores = 2 * model.heads * settings.sequence if settings.attention == "math" else 0
    stream, width = h * settings.stream, settings.policy.activation
    return (stream + max(wide // 2, scores - 2 * h - wide) * width) / cut


def gathered(model: Transformer, settings: Settings) -> float:
    """Return what tensor parallelism holds of whole tokens: a matrix's input and result, and both gradients."""
    return 4 * model.hidden * settings.policy.activation if settings.tensor_parallel > 1 else 0


def going_around(model: Transformer, settings: Settings) -> float:
    """Return what a rank of context parallelism holds of others: keys and values at work and under way, and gradients.

    Ring Attention (Liu et al., arXiv 2310.01889), section 3: a block is computed with while the next one comes.
    """
    blocks = 4 if settings.context_parallel > 1 else 0
    return blocks * 2 * model.kv_hidden * settings.policy.activation / settings.tensor_parallel


HELD_BACK = 50
"""Tensors of whole tokens whose memory NCCL keeps while the CPU runs ahead of the GPU, as far as CUDA's queue lets it.

Before torch 2.2, if asynchronous before 2.8, `record_stream` kept it (torch pull requests 111431, 150398). Fitted, to
10, on half of the playbook's rows with tensor parallelism and no pipeline, in which the CPU waits for messages.
"""


def held_back(model: Transformer, settings: Settings) -> float:
    """Return the bytes held back in nanotron, whose layers pass two to NCCL in forward and two in backward."""
    if settings.engine != "nanotron" or settings.tensor_parallel == 1 or settings.pipeline_parallel > 1:
        return 0
    return min(HELD_BACK, 4 * model.layers) * model.hidden * settings.policy.activation


def ends(model: Transformer, settings: Settings) -> dict[str, float]:
    """Return what is kept outside of the layers: after the embedding, and from the last norm to the loss."""
    h = model.hidden / settings.between
    logits = "logits and their gradients" if settings.loss == "fused" else "logits"
    return {
        "dropout mask of the embedding": h * _MASK if model.dropout else 0,
        "input of the last norm": h * settings.stream, "input of the head": h * settings.policy.activation,
        logits: min(4, LOSSES[settings.loss]) * model.vocab / settings.logit_cut,
    }  # fmt: skip


def loss_gradients(model: Transformer, settings: Settings) -> float:
    """Return the bytes of the loss beside the logits, as backward starts: see `LOSSES`. Not in the paper."""
    return max(0, LOSSES[settings.loss] - 4) * model.vocab / settings.logit_cut
