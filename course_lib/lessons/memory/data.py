"""Shared parts of lesson 02's exercises: models to measure."""

import random

import torch
from torch import nn


class Positions(nn.Module):
    """A layer that adds a parameter of its own to each row; the parameter is neither a weight nor a bias."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(rows, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.positions


def make_model(seed: int, number: int) -> nn.Sequential:
    """Return a model with an embedding, positions, a normalisation with buffers, and a head.

    Draw 0 is plain. From draw 1 on, the head is tied to the embedding. From draw 2 on, the norm or (in
    draw 3) the hidden layer is frozen. From draw 3 on, the hidden layer has a different dtype.
    """
    rng = random.Random(seed)
    vocab, width = rng.randint(20, 40), rng.randint(5, 9)
    embedding, hidden, head = nn.Embedding(vocab, width), nn.Linear(width, width), nn.Linear(width, vocab, bias=False)
    norm = nn.BatchNorm1d(width, affine=number != 1)
    if number >= 1:
        head.weight = embedding.weight
    if number >= 2:
        (hidden if number == 3 else norm).requires_grad_(False)
    if number >= 3:
        hidden.to((torch.float64, torch.bfloat16, torch.float16)[number % 3])
    return nn.Sequential(embedding, Positions(1, width), hidden, norm, head)


def about_model(number: int) -> str:
    """Describe the model of a draw in a few words."""
    tied = "a head that is tied to the embedding" if number else "a head of its own"
    frozen = f", a frozen {'layer' if number == 3 else 'norm'}" if number >= 2 else ""
    return f"a model with {tied}{frozen}{', in two dtypes' if number >= 3 else ''}"


PRECISIONS = ("fp32", "mixed", "mixed_fp32_accumulation")
OPTIMIZER = ["master weights", "first moment", "second moment"]
GRADIENTS = ["gradients", "fp32 gradients"]


def training_bytes(psi: int, precision: str) -> dict[str, int]:
    """Return the bytes of each part of the model states, with Adam, as the lesson's notebook defines it."""
    mixed = precision != "fp32"
    return {
        "parameters": (2 if mixed else 4) * psi,
        "gradients": (2 if mixed else 4) * psi,
        "fp32 gradients": (4 if precision == "mixed_fp32_accumulation" else 0) * psi,
        "master weights": (4 if mixed else 0) * psi,
        "first moment": 4 * psi,
        "second moment": 4 * psi,
    }
