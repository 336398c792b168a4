"""The models that the exercises of lesson 02 are tried on."""

from __future__ import annotations

import random

import torch
from torch import nn

from ..declare import Case


def draw_model(rng: random.Random, number: int) -> Case:
    """One model as the only argument: see `make_model`."""
    seed = rng.getrandbits(32)
    return Case(world_size=0, args=lambda rank: (make_model(seed, number),), about=about_model(number))


def make_model(seed: int, number: int) -> nn.Sequential:
    """A model with an embedding, a normalisation with buffers, and a head.

    Draw 0 is plain. From draw 1 on the head is tied to the embedding; from draw 2 on the norm is frozen, or all but
    the head; from draw 3 on dtypes differ.
    """
    rng = random.Random(seed)
    vocab, width = rng.randint(20, 40), rng.randint(5, 9)
    embedding, hidden, head = nn.Embedding(vocab, width), nn.Linear(width, width), nn.Linear(width, vocab, bias=False)
    norm = nn.BatchNorm1d(width, affine=number != 1)
    if number >= 1:
        head.weight = embedding.weight
    if number >= 2:
        (hidden if number % 2 else norm).requires_grad_(False)
    if number >= 3:
        hidden.to((torch.bfloat16, torch.float64, torch.float16)[number % 3])
    return nn.Sequential(embedding, hidden, norm, head)


def about_model(number: int) -> str:
    """Such a model in a few words."""
    tied = "a head that is tied to the embedding" if number else "a head of its own"
    frozen = f", a frozen {'layer' if number % 2 else 'norm'}" if number >= 2 else ""
    return f"a model with {tied}{frozen}{', in two dtypes' if number >= 3 else ''}"
