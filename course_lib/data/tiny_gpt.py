"""The model and the text that the lessons train on."""

from importlib.resources import files

import torch
from torch import Tensor, nn
from torch.nn import functional as F

text = (files(__package__) / "text.txt").read_text(encoding="ascii")
"""The beginning of Shakespeare's Coriolanus, in ASCII. Source: README.md next to it."""


class Block(nn.Module):
    """A layer of a transformer: causal self-attention, then an MLP, [batch, length, width] to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        query, key, value = (
            part(normed).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )  # each [batch, heads, length, width / heads]
        x = x + self.out(self.attend(query, key, value).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def mlp(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class TinyGPT(nn.Module):
    """A GPT that reads bytes [batch, length] and scores every byte that could come next, [batch, length, 256].

    It is made of an embedding, `blocks`, a norm and a head, in the order of GPT-2 (Radford et al., 2019).

    Args:
        width: elements of each token's vector; the MLP is four times as wide. `heads` divides it.
        layers: number of blocks.
        heads: number of attention heads of a block.
        context: the longest input, in tokens.
        tied: whether the head multiplies by the embedding's weight, as in GPT-2. Then the model has one matrix less.
    """

    def __init__(
        self, width: int = 64, layers: int = 2, heads: int = 4, context: int = 32, *, tied: bool = False
    ) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.init_weights()
        if tied:
            self.head.weight = self.embedding.weight

    def init_weights(self) -> None:
        """Fill the embeddings with small numbers. Every other layer keeps the values of its `reset_parameters`.

        A model that was made on the meta device has none of these values. Call both, in this order, once it has memory.
        """
        for embedding in (self.embedding, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """Return the scores of tokens [batch, length], which lie at `places` [length] of their sequence: 0, 1, 2, …"""
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


def batch(step: int, size: int = 12, context: int = 32) -> tuple[Tensor, Tensor]:
    """Return `size` sequences of the text, and for each of their bytes the byte that follows, both [size, context].

    The sequences depend on `step` alone, so that all ranks draw the same batch; each then takes its share of it.
    """
    numbers = torch.tensor(list(text.encode()), device="cpu")
    starts = torch.randint(len(text) - context, (size,), generator=torch.Generator().manual_seed(step), device="cpu")
    sequences = numbers[starts[:, None] + torch.arange(context + 1, device="cpu")].to(torch.get_default_device())
    return sequences[:, :-1], sequences[:, 1:]
