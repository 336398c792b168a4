"""The activations that forward keeps for backward, item by item, as Korthikanti et al. count them.

"Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), section 4. For GPT in 16 bits a
layer keeps sbh (34 + 5 a s / h) bytes; without the attention core 34 sbh; its input only, 2 sbh. s: tokens in a
sequence, b: sequences, h: hidden, a: heads. The paper names every item below. Here the items are written for any width
of elements, and without what a model does not have: no masks where there is no dropout; four products inside a gated
feed-forward layer where GPT has two. As in the paper, means and variances of the norms and rotary positions are left
out. All bytes are per token.
"""

from ..training.settings import Settings
from ..training.shapes import Model, Transformer

_MASK = 1  # bytes of an element of a dropout mask, on GPUs; on CPUs torch keeps it as wide as the data


def layer(model: Transformer, sequence: int, width: int, attention: str) -> dict[str, int]:
    """Return the bytes that one layer keeps in sequences of `sequence` tokens, with elements of `width` bytes.

    `attention` is "math", which keeps all scores, or "flash", which keeps one fp32 number for each head instead.
    """
    h, scores = model.hidden, model.heads * sequence
    core = scores * width + (scores * (width + _MASK) if model.dropout else 0)
    return {
        "inputs of the two norms": 2 * h * width,
        "input of queries, keys and values": h * width,
        "queries, keys and values": (h + 2 * model.kv_hidden) * width,
        "attention core": core if attention == "math" else 4 * model.heads,
        "input of the attention's projection": h * width,
        "input of the feed-forward layer": h * width,
        "inside of the feed-forward layer": _products(model) * model.ffn * width,
        "dropout masks": 2 * h * _MASK if model.dropout else 0,
    }


def _products(model: Transformer) -> int:
    """Return how many results of the feed-forward layer's width backward needs.

    They are those before and after its activation function, and in a gated one also the gate's factor and the product.
    """
    return 4 if model.gated else 2


def kept(model: Transformer, sequence: int, width: int, attention: str, checkpointing: str) -> int:
    """Return the bytes that one layer keeps until its backward, by checkpointing."""
    if checkpointing == "full":
        return model.hidden * width
    items = layer(model, sequence, width, attention)
    return sum(items.values()) - (items["attention core"] if checkpointing == "selective" else 0)


def of_a_layer(model: Model, settings: Settings) -> int:
    """Return the bytes that a layer keeps for the batch of one rank. Measured bytes are split evenly over layers."""
    layers = len([unit for unit in model.units[1:] if unit])
    if settings.activation_bytes is not None:
        return settings.activation_bytes // layers if layers else 0
    if model.transformer is None:
        return 0
    sequence, width = settings.sequence, settings.policy.activation
    one = kept(model.transformer, sequence, width, settings.attention, settings.checkpointing)
    return settings.batch * sequence * one


def gradients_at_work(model: Transformer, sequence: int, width: int, attention: str) -> int:
    """Return the most that backward through one layer adds: gradients of activations, less the activations freed.

    There is always the gradient of the residual stream. First come the gradients inside the feed-forward layer, half as
    much as it keeps; later, when all that it kept is freed, those before and after the softmax. Not in the paper.
    """
    h, inside = model.hidden, _products(model) * model.ffn
    scores = 2 * model.heads * sequence if attention == "math" else 0
    return max(h + inside // 2, scores - h - inside) * width


def ends(model: Transformer, width: int) -> dict[str, int]:
    """Return what is kept outside of the layers: after the embedding, and from the last norm to the loss."""
    return {
        "dropout mask of the embedding": model.hidden * _MASK if model.dropout else 0,
        "input of the last norm": model.hidden * width,
        "input of the head": model.hidden * width,
        "logits in fp32": 4 * model.vocab,
    }


def loss_gradients(model: Transformer) -> int:
    """Return the bytes of the loss's gradients by log-probabilities and by logits, in fp32, as backward starts.

    Not in the paper.
    """
    return 2 * 4 * model.vocab
