"""Data of the exercises on long sequences and experts."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...exercises import normal


def attend(query: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the attention of queries [tokens, size] to the keys and values of a block [2, tokens, size]; its total.

    It makes a call that all ranks make, so that one can see in the order of a rank's calls when it computes.
    """
    dist.all_reduce(torch.zeros(1))
    scores = query @ block[0].T / query.shape[1] ** 0.5
    total = scores.logsumexp(dim=1, keepdim=True)
    return (scores - total).exp() @ block[1], total


def an_expert(number: int, width: int) -> nn.Module:
    """Return expert `number`: it maps [tokens, width] to the same, and a token's result does not depend on others."""
    expert = nn.Linear(width, width)
    with torch.no_grad():
        expert.weight.copy_(normal(width, width, seed=number))
        expert.bias.copy_(normal(width, seed=number + 100))
    return expert
