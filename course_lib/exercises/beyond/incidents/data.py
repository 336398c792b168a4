"""Small models and batches that incidents share."""


import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Mlp(nn.Sequential):
    """Two layers without biases. More than `most` examples do not fit in its memory."""

    def __init__(self, width: int, most: int = 1000) -> None:
        super().__init__(nn.Linear(width, 2 * width, bias=False), nn.Tanh(), nn.Linear(2 * width, 1, bias=False))
        self.most = most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 332.00 MiB")
        out: torch.Tensor = super().forward(x)
        return out


def make_mlp(width: int, seed: int, most: int = 1000) -> Mlp:
    """Return the model of `seed`, the same on every rank."""
    torch.manual_seed(seed)
    return Mlp(width, most)


def batches(sizes: list[int], width: int, seed: int) -> list[Batch]:
    """Return a batch for each of `sizes`: inputs [size, width] and targets [size, 1]."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(size, width, generator=generator) for size in sizes]
    return [(x, x.sum(dim=1, keepdim=True)) for x in inputs]


def parameters(model: nn.Module) -> list[torch.Tensor]:
    """Return the model's parameters as plain tensors."""
    return [param.detach().clone() for param in model.parameters()]
