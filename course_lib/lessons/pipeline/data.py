"""Data of the pipeline's exercises."""

import torch
import torch.distributed as dist
from torch import nn

Width = int

NO_GRADIENT_OF_THE_INPUT = """
    Your rank received its input and did not ask for the input's gradient, so `x.grad` is None and nothing can be sent
    back. Next: let the received tensor require a gradient before your part computes.
    """
STARTS_FROM_ONES = """
    Your ranks before the last start backward from ones, as `y.sum().backward()` does. Either they receive the gradient
    of their output and do not use it, or the next rank sends ones instead of it.
    Next: go back from the gradient that came from the next rank.
    """


def a_part(width: Width, seed: int) -> nn.Module:
    """Return this rank's part of a model: it maps [batch, width] to the same shape."""
    generator = torch.Generator().manual_seed(seed + 1 + dist.get_rank())
    layer = nn.Linear(width, width)
    for param in layer.parameters():
        nn.init.uniform_(param, -1, 1, generator=generator)
    return nn.Sequential(layer, nn.Tanh())


def gradients(part: nn.Module) -> list[torch.Tensor | None]:
    """Return the gradient of each parameter."""
    return [param.grad for param in part.parameters()]
