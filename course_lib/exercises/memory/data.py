"""The models and tensors that the exercises of lesson 02 are tried on."""

from __future__ import annotations

import random

import torch
from torch import nn

from ..form.declare import Case


def draw_model(rng: random.Random, number: int) -> Case:
    """One model as the only argument: see `make_model`."""
    seed = rng.getrandbits(32)
    return Case(world_size=0, args=lambda rank: (make_model(seed, number),), about=about_model(number))


class Positions(nn.Module):
    """Adds to each row of its input a parameter of the module's own, which is neither a weight nor a bias."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(rows, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.positions


def make_model(seed: int, number: int) -> nn.Sequential:
    """A model with an embedding, positions, a normalisation with buffers, and a head.

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
    return nn.Sequential(embedding, Positions(1, width), hidden, norm, head)


def about_model(number: int) -> str:
    """Such a model in a few words."""
    tied = "a head that is tied to the embedding" if number else "a head of its own"
    frozen = f", a frozen {'layer' if number % 2 else 'norm'}" if number >= 2 else ""
    return f"a model with {tied}{frozen}{', in two dtypes' if number >= 3 else ''}"


KINDS = {
    "one's own": torch.float32,
    "a copy": torch.bfloat16,
    "a copy but for the last element": torch.float32,
    "a copy but for one in the middle": torch.float32,
    "reordered": torch.float64,
    "a copy on odd ranks": torch.float64,
    "almost a copy": torch.float32,
}
"""What a tensor is to rank 0's, and its dtype in such a case."""


def draw_tensors(rng: random.Random, number: int) -> Case:
    world_size = (2, 4, 3, 1)[number] if number < 4 else rng.randint(2, 4)
    kinds = {"one's own": torch.float32, "a copy": torch.float32}
    if number == 4:
        kinds = dict.fromkeys(("a copy", "a copy on odd ranks"), torch.float32)
    elif number:  # the copy first, where draw 0 has it last
        kinds = {kind: KINDS[kind] for kind in ("a copy", *rng.sample(list(KINDS), len(KINDS)))}
    numels, seed = [rng.randint(3, 9) for _ in kinds], rng.getrandbits(32)
    if number == 2:
        numels[0] = 1  # like a count of steps

    def args(rank: int) -> tuple[list[torch.Tensor]]:
        drawn = zip(kinds.items(), numels, strict=True)
        return ([make_tensor(kind, numel, seed, rank).to(dtype) for (kind, dtype), numel in drawn],)

    about = f"{world_size} rank{'s' * (world_size > 1)}, {len(kinds)} tensors"
    return Case(world_size=world_size, args=args, about=about)


def make_tensor(kind: str, numel: int, seed: int, rank: int) -> torch.Tensor:
    """`numel` different values; what they are to those of rank 0, `kind` says."""
    original = 1 + torch.randperm(numel, generator=torch.Generator().manual_seed(seed)) / 8  # exact in each dtype
    if rank == 0 or kind == "a copy" or (kind == "a copy on odd ranks" and rank % 2):
        return original
    return {
        "one's own": original + numel + rank,
        "a copy but for the last element": torch.cat([original[:-1], original[-1:] + rank]),
        "a copy but for one in the middle": torch.cat([original[:1], original[1:2] + rank, original[2:]]),
        "reordered": original.roll(1),
        "a copy on odd ranks": original - 2 * rank,
        "almost a copy": original * (1 + 2**-20),
    }[kind]
