"""Tensor and sequence parallel: every matrix is cut, and each rank computes with its part of it.

    column parallel    query, key, value, up: a rank holds some rows of the weight, and computes some output features
    row parallel       out, down: it holds the columns for just these features, and computes a summand of the output
    enter, leave       where activations travel: before the first of such a pair and after the second
    sequence parallel  outside the pairs a rank has a part of the sequence, [batch, length / N, width]

Two collectives a block in forward, two in backward (Shoeybi et al. 2019). With sequence parallel (Korthikanti et al.
2022) an all-reduce becomes a reduce-scatter and an all-gather, which send as much together; and no rank holds a copy of
the activations between the pairs.
"""

from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import Block, TinyGPT
from .collectives import Group, all_gather, all_reduce, copy, part, reduce_scatter
from .parts import Part
from .vocabulary import look_up, vocabulary_cross_entropy

Layer = TypeVar("Layer", nn.Linear, nn.Embedding)


class TensorParallel(Part):
    """A module whose matrices are cut over the ranks of a group.

    Args:
        group: the ranks that compute together; all of them by default.
        sequence_parallel: whether a rank has only its part of the sequence outside the pairs of matrices.
    """

    def __init__(self, group: Group, sequence_parallel: bool) -> None:
        super().__init__(group)
        self.sequence_parallel = sequence_parallel

    def enter(self, x: Tensor) -> Tensor:
        """Return the activations of the whole sequence, as a pair's first matrix needs them."""
        return all_gather(x, 1, self.group) if self.sequence_parallel else copy(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' summands, or this rank's part of it."""
        return reduce_scatter(x, 1, self.group) if self.sequence_parallel else all_reduce(x, self.group)

    def whole(self, param: Tensor) -> Tensor:
        """Return a parameter that no rank cuts. A rank that sees a part of the sequence has a part of its gradient."""
        return copy(param, self.group) if self.sequence_parallel else param

    def normed(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        return F.layer_norm(x, norm.normalized_shape, self.whole(norm.weight), self.whole(norm.bias), norm.eps)


class TensorParallelBlock(TensorParallel):
    """A transformer block, each rank with some of its heads and some of its MLP's features.

    Args:
        block: the whole block, made alike on every rank; its matrices are cut in place.
        group, sequence_parallel: see TensorParallel.

    Raises:
        ValueError: the block has an attention, an MLP or a forward of its own, or a layer without a bias.
    """

    def __init__(self, block: Block, group: Group, sequence_parallel: bool) -> None:
        super().__init__(group, sequence_parallel)
        _check_plain(block, Block, "forward", "attend", "mlp")
        if lacking := [name for name, layer in block.named_children() if getattr(layer, "bias", 0) is None]:
            raise ValueError(
                f"{lacking[0]} has no bias, which TensorParallelBlock adds. Keep it, and fill it with zeros."
            )
        self.heads = block.heads // dist.get_world_size(group)
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.query, self.key, self.value, self.up = (
            cut_columns(linear, group) for linear in (block.query, block.key, block.value, block.up)
        )
        self.out, self.down = cut_rows(block.out, group), cut_rows(block.down, group)

    def forward(self, x: Tensor) -> Tensor:
        attended = self._attention(self.enter(self.normed(self.norm1, x)))
        # Each bias is added after the sum: once, not once for each rank.
        x = x + self.leave(F.linear(attended, self.out.weight)) + self.whole(self.out.bias)
        features = F.gelu(self.up(self.enter(self.normed(self.norm2, x))))
        return x + self.leave(F.linear(features, self.down.weight)) + self.whole(self.down.bias)

    def _attention(self, x: Tensor) -> Tensor:
        """Return the output of this rank's heads, [batch, length, width / N]."""
        query, key, value = (
            linear(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


class TensorParallelGPT(TensorParallel):
    """TinyGPT on N ranks, with parameter names of its own model. Each rank is given the same tokens.

    Args:
        model: a whole TinyGPT, made alike on every rank, with untied weights; its matrices are cut in place.
        group, sequence_parallel: see TensorParallel.

    Raises:
        ValueError: the number of ranks does not divide heads, width, or vocabulary; the weights are tied; or the model
            computes differently from TinyGPT.
    """

    def __init__(self, model: TinyGPT, group: Group = None, *, sequence_parallel: bool = False) -> None:
        super().__init__(group, sequence_parallel)
        _check_plain(model, TinyGPT, "forward")
        if model.head.weight is model.embedding.weight:
            raise ValueError(
                "embedding and head are one weight, and each would be cut into a weight of its own. Make TinyGPT with "
                "tied=False."
            )
        blocks = [cast(Block, block) for block in model.blocks]
        if (heads := blocks[0].heads) % dist.get_world_size(group):
            raise ValueError(
                f"{heads} heads cannot be shared by {dist.get_world_size(group)} ranks. Choose a number of ranks that "
                "divides the number of heads."
            )
        self.embedding, self.head = cut_columns(model.embedding, group), cut_columns(model.head, group)
        self.positions, self.norm = model.positions, model.norm
        self.blocks = nn.ModuleList(TensorParallelBlock(block, group, sequence_parallel) for block in blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return this rank's part of the scores, [batch, length, vocab / N], of tokens [batch, length].

        With sequence parallel, the number of ranks divides the length.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        positions = F.embedding(places, self.whole(self.positions.weight))
        x = self.leave(look_up(tokens, self.embedding.weight, self.group))
        x = x + (part(positions, 0, self.group) if self.sequence_parallel else positions)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.enter(self.normed(self.norm, x)))
        return scores

    def loss_of(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over all tokens, of this rank's scores, the same on every rank."""
        return vocabulary_cross_entropy(scores.flatten(0, 1), targets.flatten(), self.group)


def _check_plain(module: nn.Module, kind: type[nn.Module], *names: str) -> None:
    """Refuse what would be left out in silence: a cut module computes as `kind` does."""
    for name in names:
        if getattr(getattr(module, name), "__func__", None) is not getattr(kind, name):
            raise ValueError(
                f"this {type(module).__name__} has its own `{name}`, and tensor parallel would compute with that of "
                f"{kind.__name__}. Cut its layers yourself, with cut_columns and cut_rows of parallel/tensor.py."
            )


def cut_columns(layer: Layer, group: Group) -> Layer:
    """Cut the output features of a linear layer, or the tokens of an embedding: rows of the weight. In place."""
    return _cut(layer, {name: 0 for name, _ in layer.named_parameters()}, group)


def cut_rows(layer: nn.Linear, group: Group) -> nn.Linear:
    """Cut the input features of a linear layer: columns of the weight. The bias stays whole. In place."""
    return _cut(layer, {"weight": 1}, group)


def _cut(layer: Layer, dims: dict[str, int], group: Group) -> Layer:
    for name, dim in dims.items():
        param = layer.get_parameter(name)
        values = part(param.detach(), dim, group).clone(memory_format=torch.contiguous_format)
        setattr(layer, name, nn.Parameter(values, requires_grad=param.requires_grad))
    layer.cut_dims = dims  # type: ignore[assignment]  # of the layer, not of a parameter, whose copies would lack it
    return layer
